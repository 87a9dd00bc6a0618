#!/usr/bin/env bash
# Install the gateways that benchmarks/gateway_overhead.py compares with, each in a venv of its own.
# usage: install_gateways.sh DIR [litellm] [vllm-router]      (default: both)
set -euo pipefail
dir=${1:?usage: install_gateways.sh DIR [litellm] [vllm-router]}
shift
which=("$@")
[ ${#which[@]} -gt 0 ] || which=(litellm vllm-router)
python=${PYTHON:-python3.11}
mkdir -p "$dir"
for name in "${which[@]}"; do
  case $name in
    litellm) packages=("litellm[proxy]==1.105.7") ;; # 1.107.0 was published by an attacker: name the version
    vllm-router) packages=(vllm-router) ;;
    *)
      echo "unknown gateway $name: litellm or vllm-router" >&2
      exit 2
      ;;
  esac
  [ -x "$dir/$name/bin/pip" ] || "$python" -m venv "$dir/$name"
  "$dir/$name/bin/pip" --disable-pip-version-check install -q "${packages[@]}"
  "$dir/$name/bin/pip" --disable-pip-version-check list --format=freeze | grep -i "^$name=="
done
