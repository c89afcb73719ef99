package target

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Try returns trials that find out whether each connection can be made. path is the path of the
// section. Topics, exchanges and streams are not tried: subscribers name them.
func (c Connections) Try(path string) (trials []trial.Trial, end func()) {
	var all trial.List
	for _, name := range slices.Sorted(maps.Keys(c.Kafka)) {
		all.Add(c.Kafka[name].Connection.Try(path+".kafka."+name, nil))
	}
	for _, name := range slices.Sorted(maps.Keys(c.RabbitMQ)) {
		all.Add(c.RabbitMQ[name].Connection.Try(path + ".rabbitmq." + name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Redis)) {
		all.Add(c.Redis[name].try(path + ".redis." + name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pulsar)) {
		all.Add(trial.Pulsar(path+".pulsar."+name, c.Pulsar[name].Config, func(*messaging.Client) []trial.Trial { return nil }))
	}
	return all.Trials, all.End
}

func (c Redis) try(path string) (t trial.Trial, end func()) {
	t.Name = path + ".addresses " + strings.Join(c.Addresses, ",")
	c.ConnectTimeout = min(c.ConnectTimeout, trial.Timeout)
	client, err := c.open()
	if err != nil {
		return trial.Of(t.Name, err), func() {}
	}
	t.Try = func(ctx context.Context) error { return client.Ping(ctx).Err() }
	return t, func() { _ = client.Close() } // the process ends
}
