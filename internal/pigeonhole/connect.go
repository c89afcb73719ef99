package pigeonhole

import (
	"fmt"

	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
	"github.com/aviaryhq/aviary/internal/trial"
)

// Connect returns what -config.connect tries: source, sink and dead letters of each route.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	if len(cfg.Routes) == 0 {
		return []trial.Trial{trial.Of("routes", trial.Note("there are none"))}, func() {}
	}
	var ends []func()
	add := func(t trial.Trial, end func()) {
		trials = append(trials, t)
		ends = append(ends, end)
	}
	for i, rc := range cfg.Routes {
		rc.try(fmt.Sprintf("routes[%d]", i), add)
	}
	return trials, trial.Ends(ends...)
}

func (c RouteConfig) try(path string, add func(trial.Trial, func())) {
	add(c.Source.try(path + ".source"))
	var to []trial.Place
	var note []trial.Trial
	if name, fixed := c.destination(); fixed {
		to = append(to, trial.Place{Path: path + ".to", Name: name})
	} else {
		note = append(note, trial.Of(path+".to "+c.To, trial.Note("not tried: it depends on the message")))
	}
	letters := []trial.Place{{Path: path + ".dead_letter.to", Name: c.DeadLetter.To}}
	into := c.DeadLetter.Sink
	if c.deadLetters() && into == nil {
		to = append(to, letters...)
	}
	sink, end := c.Sink.try(path+".sink", to)
	sink.Then = append(sink.Then, note...)
	add(sink, end)
	if c.deadLetters() && into != nil {
		add(into.try(path+".dead_letter.sink", letters))
	}
}

// destination is that of all messages, when it does not depend on them.
func (c RouteConfig) destination() (to string, fixed bool) {
	changes, err := transform.New(c.Config)
	if err != nil { // Validate has found none
		return "", false
	}
	return changes.Destination()
}

func (c SourceConfig) try(path string) (t trial.Trial, end func()) {
	switch path += "." + c.system(); {
	case c.Kafka != nil:
		return c.Kafka.Try(path)
	case c.RabbitMQ != nil:
		return c.RabbitMQ.Try(path)
	default:
		return c.Pulsar.Try(path)
	}
}

func (c SinkConfig) try(path string, to []trial.Place) (t trial.Trial, end func()) {
	switch path += "." + c.system(); {
	case c.Kafka != nil:
		return c.Kafka.Try(path, to)
	case c.RabbitMQ != nil:
		return c.RabbitMQ.Try(path, to)
	default:
		return c.Pulsar.Try(path, to)
	}
}
