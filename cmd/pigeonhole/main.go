// Command pigeonhole replicates messages between Kafka, RabbitMQ and Apache Pulsar.
package main

import (
	"os"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
)

func main() {
	os.Exit(app.Main(app.Program[pigeonhole.Config]{
		Name:     "pigeonhole",
		Summary:  "Messages between Kafka, RabbitMQ and Apache Pulsar.",
		Defaults: pigeonhole.DefaultConfig,
		Build:    pigeonhole.Build,
		Connect:  pigeonhole.Connect,
		Setup:    pigeonhole.Setup,
	}))
}
