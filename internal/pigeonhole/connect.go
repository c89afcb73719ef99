package pigeonhole

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Connect returns the trials of -config.connect: source, sink and dead-letter sink of each route.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	if len(cfg.Routes) == 0 {
		return []trial.Trial{trial.Of("routes", trial.Note("there are none"))}, func() {}
	}
	var all trial.List
	for i, rc := range cfg.Routes {
		rc.addTrials(fmt.Sprintf("routes[%d]", i), &all)
	}
	return all.Trials, all.End
}

func (c RouteConfig) addTrials(path string, all *trial.List) {
	system, source := c.Source.section()
	all.Add(source.Try(path + ".source." + system))
	var to []trial.Place
	var more []trial.Trial
	if name, fixed := c.destination(); fixed {
		to = append(to, trial.Place{Path: path + ".to", Name: name})
		more = append(c.tryPartitions(path+".to", c.Sink, name), c.tryDeduplication(path+".to", name)...)
	} else {
		more = append(more, trial.Of(path+".to "+c.To, trial.Note("not tried: it depends on the message")))
	}
	deadLetters := []trial.Place{{Path: path + ".dead_letter.to", Name: c.DeadLetter.To}}
	into := c.DeadLetter.Sink
	if c.deadLetters() && into == nil {
		to = append(to, deadLetters...)
	}
	system, section := c.Sink.section()
	sink, end := section.Try(path+".sink."+system, to)
	sink.Then = append(sink.Then, more...)
	all.Add(sink, end)
	if c.deadLetters() && into != nil {
		system, section := into.section()
		sink, end := section.Try(path+".dead_letter.sink."+system, deadLetters)
		sink.Then = append(sink.Then, c.tryPartitions(path+".dead_letter.to", *into, c.DeadLetter.To)...)
		all.Add(sink, end)
	}
}

// tryDeduplication returns a trial that checks deduplication on the brokers, if the route needs it
// and an admin API is configured.
func (c RouteConfig) tryDeduplication(path, topic string) []trial.Trial {
	if c.Guarantee != EffectivelyOnce || c.Sink.Pulsar == nil || c.Sink.Pulsar.AdminURL == "" || !messaging.ValidTopic(topic) {
		return nil
	}
	return []trial.Trial{{Name: path + ": deduplication", Try: func(ctx context.Context) error {
		return c.Sink.Pulsar.TryDeduplication(ctx, topic)
	}}}
}

// A partitioned source or sink has numbered partitions.
type (
	partitionedSource interface {
		Names() []string
		Partitions(ctx context.Context, topic string) (int, error)
	}
	partitionedSink interface {
		FollowsSource() bool
		Partitions(ctx context.Context, topic string) (int, error)
	}
)

// tryPartitions returns a trial that checks that the destination has at least as many partitions as
// the source, if messages keep their partition number.
func (c RouteConfig) tryPartitions(path string, to SinkConfig, topic string) []trial.Trial {
	_, from := c.Source.section()
	_, into := to.section()
	source, numbered := from.(partitionedSource)
	sink, takesNumbers := into.(partitionedSink)
	if !numbered || !takesNumbers || !sink.FollowsSource() {
		return nil
	}
	return []trial.Trial{{Name: path + ": partitions", Try: func(ctx context.Context) error {
		if len(source.Names()) == 0 {
			return trial.Note("not tried: it needs as many as the widest topic that the source's pattern will match")
		}
		widestTopic, need, err := widestTopic(ctx, source)
		if err != nil {
			return trial.Notef("not known how many it needs: %s", trial.Plain(err))
		}
		have, err := sink.Partitions(ctx, topic)
		switch {
		case err != nil:
			return err
		case have == 0 && need > 1:
			return fmt.Errorf("create it with %d partitions, as many as %s has: a topic that the broker creates has one, or the broker's default number,"+
				" and messages from partitions that it does not have are refused", need, widestTopic)
		case have > 0 && have < need:
			return fmt.Errorf("it has %d, and %s has %d: messages from partitions that it does not have are refused", have, widestTopic, need)
		}
		return nil
	}}}
}

// widestTopic returns the source's topic with the most partitions, and their number.
func widestTopic(ctx context.Context, source partitionedSource) (topic string, partitions int, err error) {
	for _, name := range source.Names() {
		n, err := source.Partitions(ctx, name)
		if err != nil {
			return "", 0, err
		}
		if n > partitions {
			topic, partitions = name, n
		}
	}
	return topic, partitions, nil
}

// destination returns the destination of all messages; fixed is false if it depends on the message.
func (c RouteConfig) destination() (to string, fixed bool) {
	changes, err := c.newTransform()
	if err != nil { // cannot happen after Validate
		return "", false
	}
	return changes.Destination()
}
