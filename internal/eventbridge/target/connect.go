package target

import (
	"maps"
	"slices"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Try returns trials that find out whether each connection can be made. path is the path of the
// section. Topics, and exchanges are not tried: subscribers name them.
func (c Connections) Try(path string) (trials []trial.Trial, end func()) {
	var all trial.List
	for _, name := range slices.Sorted(maps.Keys(c.Kafka)) {
		all.Add(c.Kafka[name].Connection.Try(path+".kafka."+name, nil))
	}
	for _, name := range slices.Sorted(maps.Keys(c.RabbitMQ)) {
		all.Add(c.RabbitMQ[name].Connection.Try(path + ".rabbitmq." + name))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pulsar)) {
		all.Add(trial.Pulsar(path+".pulsar."+name, c.Pulsar[name].Config, func(*messaging.Client) []trial.Trial { return nil }))
	}
	return all.Trials, all.End
}
