#!/bin/sh
# Applies an overlay in the order of an upgrade: everything but the engines, and when all workers are replaced the engines.
#
#   sh deploy/k8s/apply.sh deploy/k8s/overlays/scale           an installation, or an upgrade
#   sh deploy/k8s/apply.sh --back deploy/k8s/overlays/scale    the way back to an earlier version: engines first
#
# Each Deployment replaces its pods one at a time. It may be interrupted and run again. ROLLOUT_TIMEOUT (30m) bounds each
# of the two steps; when a step fails, both versions go on working together.
set -eu
first=worker
last=engine
if [ "${1:-}" = --back ]; then
    first=engine
    last=worker
    shift
fi
overlay=${1:?names no overlay, such as deploy/k8s/overlays/scale}

replaced() {
    # Of the workers there is one Deployment for each pool.
    kubectl -n callstream rollout status deployment -l "app.kubernetes.io/name=callstream-$1" --timeout="${ROLLOUT_TIMEOUT:-30m}"
}

kubectl apply -k "$overlay" -l "app.kubernetes.io/name!=callstream-$last"
replaced "$first"
kubectl apply -k "$overlay"
replaced "$last"
