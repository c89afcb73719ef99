package target

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Try returns what finds out whether each connection can be made; path is the section's. Topics, queues and streams are named by subscribers.
func (c Connections) Try(path string) (trials []trial.Trial, end func()) {
	var ends []func()
	add := func(t trial.Trial, end func()) {
		trials = append(trials, t)
		ends = append(ends, end)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Kafka)) {
		add(c.Kafka[name].Connection.Try(path+".kafka."+name, nil))
	}
	for _, name := range slices.Sorted(maps.Keys(c.RabbitMQ)) {
		add(c.RabbitMQ[name].Connection.Try(path + ".rabbitmq." + name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Redis)) {
		add(c.Redis[name].try(path + ".redis." + name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pulsar)) {
		add(trial.Pulsar(path+".pulsar."+name, c.Pulsar[name].Config, func(*messaging.Client) []trial.Trial { return nil }))
	}
	return trials, trial.Ends(ends...)
}

func (c Redis) try(path string) (t trial.Trial, end func()) {
	t.Name = path + ".addresses " + strings.Join(c.Addresses, ",")
	c.ConnectTimeout = min(c.ConnectTimeout, trial.Timeout)
	client, err := c.open()
	if err != nil {
		t.Try = func(context.Context) error { return err }
		return t, func() {}
	}
	t.Try = func(ctx context.Context) error { return client.Ping(ctx).Err() }
	return t, func() { _ = client.Close() } // the process ends
}
