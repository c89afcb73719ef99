module github.com/aviaryhq/aviary/deployments/grafana/source

go 1.26.8

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
