// Command sonic is a Redis endpoint whose writes reach the Redis of every availability zone.
package main

import (
	"os"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/sonic"
)

func main() {
	os.Exit(app.Main(app.Program[sonic.Config]{
		Name:     "sonic",
		Summary:  "Redis writes in every availability zone, over Apache Pulsar.",
		Defaults: sonic.DefaultConfig,
		Flags:    sonic.Flags,
		Build:    sonic.Build,
		Connect:  sonic.Connect,
		Setup:    sonic.Setup,
	}))
}
