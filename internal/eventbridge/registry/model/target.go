package model

import (
	"reflect"
	"strings"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Target is where events are delivered. Exactly one is set: the configuration of one kind of
// target.
type Target struct {
	Webhook  *Webhook        `json:"webhook,omitempty"`
	Pulsar   *PulsarTarget   `json:"pulsar,omitempty"`
	Kafka    *KafkaTarget    `json:"kafka,omitempty"`
	RabbitMQ *RabbitMQTarget `json:"rabbitmq,omitempty"`
	Log      *LogTarget      `json:"log,omitempty"`
}

// targetConfig is the configuration of one kind of target. validate returns what is wrong with it by
// itself, by pointers below it. Package target checks the rest.
type targetConfig interface {
	validate(s *Subscriber) FaultList
}

// kinds returns the names of all kinds of targets, and the configurations that are set.
func (t *Target) kinds() (all []string, set map[string]targetConfig) {
	set = make(map[string]targetConfig)
	v := reflect.ValueOf(t).Elem()
	for i := range v.NumField() {
		name := keyOf(v.Type().Field(i))
		all = append(all, name)
		if c, is := v.Field(i).Interface().(targetConfig); is && !v.Field(i).IsNil() {
			set[name] = c
		}
	}
	return all, set
}

// Kind returns the kind of target: its key in JSON, such as webhook. It is empty if not exactly one
// is set.
func (t *Target) Kind() string {
	_, set := t.kinds()
	for name := range set {
		if len(set) == 1 {
			return name
		}
	}
	return ""
}

// validateTarget returns what is wrong with the target of s, by pointers below it.
func validateTarget(s *Subscriber, checks Checks) (f FaultList) {
	all, set := s.Target.kinds()
	if len(set) != 1 {
		last := len(all) - 1
		f.Add("", "must have exactly one of %s and %s, got %d", strings.Join(all[:last], ", "), all[last], len(set))
	}
	for name, c := range set {
		f.below("/"+name, c.validate(s))
	}
	if len(f) == 0 && checks.Target != nil && !holdsHidden(&s.Target) {
		f.below("", checks.Target(&s.Target))
	}
	return f
}

// PulsarTarget is a topic of the cluster that Eventbridge itself uses, or of a connection of the
// configuration.
type PulsarTarget struct {
	Topic      string `json:"topic"`
	Connection string `json:"connection,omitempty"`
}

func (p *PulsarTarget) validate(*Subscriber) (f FaultList) {
	if !messaging.ValidTopic(p.Topic) {
		f.Add("/topic", "must be the name of a topic such as persistent://public/default/orders, got %s", Quote(p.Topic))
	}
	f.Text("/topic", p.Topic, MaxText)
	f.Text("/connection", p.Connection, MaxText)
	return f
}

// KafkaTarget is a topic at a connection of the configuration (connections.kafka).
type KafkaTarget struct {
	Connection string `json:"connection"`
	Topic      string `json:"topic"`
}

const kafkaLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func (k *KafkaTarget) validate(*Subscriber) (f FaultList) {
	f.needed("/connection", k.Connection)
	if valid := strings.Trim(k.Topic, kafkaLetters) == "" && k.Topic != "." && k.Topic != ".."; k.Topic == "" || len(k.Topic) > 249 || !valid {
		f.Add("/topic", "must be 1 to 249 of a-z, A-Z, 0-9, ., _ and -, got %s", Quote(k.Topic))
	}
	return f
}

// RabbitMQTarget is an exchange at a connection of the configuration (connections.rabbitmq).
type RabbitMQTarget struct {
	Connection string `json:"connection"`
	Exchange   string `json:"exchange"`
	RoutingKey string `json:"routing_key,omitempty"`
}

func (r *RabbitMQTarget) validate(*Subscriber) (f FaultList) {
	f.needed("/connection", r.Connection)
	f.Text("/exchange", r.Exchange, 255)
	f.Text("/routing_key", r.RoutingKey, 255)
	if r.Exchange == "" && r.RoutingKey == "" {
		f.Add("/exchange", "must be given, unless routing_key is the name of a queue")
	}
	return f
}

// LogTarget writes events to the process' log.
type LogTarget struct{}

func (*LogTarget) validate(*Subscriber) FaultList { return nil }

// holdsHidden reports whether a target has a hidden secret: it is not known then which secret is
// stored.
func holdsHidden(t *Target) (found bool) {
	EachSecret(reflect.ValueOf(t).Elem(), "", func(_ string, s secret.String) secret.String {
		found = found || hidden(s)
		return s
	})
	return found
}

// hidden reports whether a secret is a hidden one.
func hidden(s secret.String) bool { return s.Reveal() == HiddenSecret }
