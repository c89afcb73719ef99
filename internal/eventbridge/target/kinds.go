package target

import (
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// kind is one kind of target.
type kind struct {
	// check calls fault for what this process cannot use, see Factory.Check; pointer is from the
	// kind's configuration. Nil: there is nothing to check.
	check func(f *Factory, t *model.Target, fault func(pointer, problem string))
	// open makes a target in which check has found no fault. timeout bounds an attempt.
	open func(f *Factory, s *model.Subscriber, timeout time.Duration) (Target, error)
}

// kinds returns all kinds of targets by their key in [model.Target].
func kinds() map[string]kind {
	type fault = func(pointer, problem string)
	return map[string]kind{
		"webhook": {
			check: func(f *Factory, t *model.Target, fault fault) { f.checkWebhook(t.Webhook, fault) },
			open: func(f *Factory, s *model.Subscriber, timeout time.Duration) (Target, error) {
				return newWebhook(s.Target.Webhook, timeout, max(s.Delivery.Concurrency, 1), f)
			},
		},
		"pulsar": {
			check: func(f *Factory, t *model.Target, fault fault) { f.checkPulsar(t.Pulsar, fault) },
			open: func(f *Factory, s *model.Subscriber, timeout time.Duration) (Target, error) {
				return newPulsar(s.Target.Pulsar, timeout, f)
			},
		},
		"kafka": {
			check: func(f *Factory, t *model.Target, fault fault) {
				checkConnection(f.connections.Kafka, t.Kafka.Connection, "kafka", fault)
			},
			open: func(f *Factory, s *model.Subscriber, timeout time.Duration) (Target, error) {
				return newKafka(s.Target.Kafka, timeout, f)
			},
		},
		"rabbitmq": {
			check: func(f *Factory, t *model.Target, fault fault) {
				checkConnection(f.connections.RabbitMQ, t.RabbitMQ.Connection, "rabbitmq", fault)
			},
			open: func(f *Factory, s *model.Subscriber, timeout time.Duration) (Target, error) {
				return newRabbitMQ(s.Target.RabbitMQ, timeout, f)
			},
		},
		"log": {open: func(f *Factory, s *model.Subscriber, _ time.Duration) (Target, error) { return newLog(s, f), nil }},
	}
}
