// Command eventbridge takes events by HTTP, matches them against subscribers' rules and delivers
// them.
package main

import (
	"os"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
)

func main() {
	os.Exit(app.Main(app.Program[eventbridge.Config]{
		Name:     "eventbridge",
		Summary:  "Events by HTTP, matched against rules and delivered to subscribers, over Apache Pulsar.",
		Defaults: eventbridge.DefaultConfig,
		Flags:    eventbridge.Flags,
		Build:    eventbridge.Build,
		Connect:  eventbridge.Connect,
		Setup:    eventbridge.Setup,
	}))
}
