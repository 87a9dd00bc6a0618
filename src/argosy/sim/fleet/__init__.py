"""Many simulated replicas behind the router that the live gateway uses: failures, retries, scaling, separate pools."""
