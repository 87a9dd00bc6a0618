"""Many replicas: `policies` decides, and the live gateway and the simulator act on what it decides."""
