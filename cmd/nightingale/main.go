// Command nightingale receives Prometheus remote write and publishes the samples to Apache Pulsar.
package main

import (
	"os"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/nightingale"
)

func main() {
	os.Exit(app.Main(app.Program[nightingale.Config]{
		Name:     "nightingale",
		Summary:  "Prometheus remote write to Apache Pulsar.",
		Defaults: nightingale.DefaultConfig,
		Flags:    nightingale.Flags,
		Build:    nightingale.Build,
		Connect:  nightingale.Connect,
		Setup:    nightingale.Setup,
	}))
}
