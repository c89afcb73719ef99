package target

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// kind is one kind of target.
type kind struct {
	// check returns what this process cannot use, see Factory.Check; pointers are from the kind's
	// configuration.
	check func(f *Factory, t *model.Target) model.FaultList
	// open makes a target in which check has found no fault. timeout bounds an attempt.
	open func(f *Factory, s *model.Subscriber, timeout time.Duration) (Target, error)
}

// kinds returns all kinds of targets by their key in [model.Target].
func kinds() map[string]kind {
	return map[string]kind{
		"webhook":  {(*Factory).checkWebhook, (*Factory).openWebhook},
		"pulsar":   {(*Factory).checkPulsar, (*Factory).openPulsar},
		"kafka":    {(*Factory).checkKafka, (*Factory).openKafka},
		"rabbitmq": {(*Factory).checkRabbitMQ, (*Factory).openRabbitMQ},
		"log":      {(*Factory).checkLog, (*Factory).openLog},
	}
}

// checkConnection returns a fault if the section connections has no such name for a system.
func checkConnection[C any](connections map[string]C, name, system string) (faults model.FaultList) {
	if _, ok := connections[name]; !ok {
		known := "there is none"
		if names := slices.Sorted(maps.Keys(connections)); len(names) > 0 {
			known = "known are " + strings.Join(names, ", ")
		}
		faults.Add("/connection", "must be a name below connections.%s in the configuration, got %q; %s", system, name, known)
	}
	return faults
}
