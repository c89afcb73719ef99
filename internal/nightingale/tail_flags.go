package nightingale

import (
	"context"
	"flag"
	"os"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/nightingale/tail"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Flags registers the command line's own flags.
func Flags(fs *flag.FlagSet, cfg *Config) {
	fs.BoolFunc("tail", "print the samples of the topic as they arrive, until Ctrl-C, instead of receiving any", func(string) error {
		cfg.Tail = true
		// A tail often runs on a machine with a receiver, whose admin server has the default port.
		// On a terminal its log lines appear between the samples.
		cfg.Admin.Listen, cfg.Log.Level = "127.0.0.1:0", "warn"
		return nil
	})
	fs.StringVar(&cfg.TailTopic, "tail.topic", cfg.TailTopic, "the `topic` that -tail reads, where it is not the configured one")
}

// buildTail wires the tail: a consumer with a non-durable subscription, which does not affect other
// consumers and leaves no subscription behind.
func buildTail(ctx context.Context, rt *app.Runtime, cfg Config) error {
	topic := cfg.Topic
	if cfg.TailTopic != "" {
		topic = cfg.TailTopic
	}
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	consumer, err := client.Consumer(tail.ConsumerConfig(topic))
	if err != nil {
		return err
	}
	tail.Start(rt, os.Stdout, consumer.Run)
	return nil
}
