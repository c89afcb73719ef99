package target

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config is the section targets: which addresses webhooks may have.
type Config struct {
	// Allow lists networks (CIDR) that webhooks and token URLs may be in although they are not
	// public. Private, loopback, link-local and other special addresses outside of these networks
	// are refused. Default: none.
	Allow []netip.Prefix `yaml:"allow"`
	// Ports lists the ports that webhooks and token URLs may have. Default: any.
	Ports []uint16 `yaml:"ports"`
}

// Connections is the section connections: the systems that targets may use. A target names a
// connection by its key here.
type Connections struct {
	// Kafka holds connections to clusters by the names that targets use. Default: none.
	Kafka map[string]Kafka `yaml:"kafka"`
	// RabbitMQ holds connections to virtual hosts by the names that targets use. Default: none.
	RabbitMQ map[string]RabbitMQ `yaml:"rabbitmq"`
	// Pulsar holds connections to clusters other than Eventbridge's own. Default: none.
	Pulsar map[string]Pulsar `yaml:"pulsar"`
}

// clientName is Eventbridge's name in the logs and views of other systems.
const clientName = "eventbridge"

// Try returns trials that find out whether each connection can be made. path is the path of the
// section. Topics and exchanges are not tried: subscribers name them.
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
