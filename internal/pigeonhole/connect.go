package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/trial"
)

// Connect returns the trials of -config.connect: source, sink and dead-letter sink of each route.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	var all trial.List
	for i, rc := range cfg.Routes {
		rc.addTrials(fmt.Sprintf("routes[%d]", i), &all)
	}
	return all.Trials, all.End
}

func (c RouteConfig) addTrials(path string, all *trial.List) {
	system, source := only(c.Source)
	all.Add(source.Try(path + ".source." + system))

	system, sink := c.sink()
	to := []trial.Place{{Path: path + ".to", Name: c.To}}
	more := c.tryPartitions(path+".to", sink, c.To)
	if exact, ok := sink.(connector.ExactSink); ok && c.Guarantee == EffectivelyOnce {
		more = append(more, exact.TryEffectivelyOnce(path+".to", c.To)...)
	}
	if strings.Contains(c.To, "{") {
		to, more = nil, []trial.Trial{trial.Of(path+".to "+c.To, trial.Note("not tried: it depends on the message"))}
	}
	deadLetters := []trial.Place{{Path: path + ".dead_letter.to", Name: c.DeadLetter.To}}
	if c.DeadLetter.To != "" && c.DeadLetter.Sink == nil {
		to = append(to, deadLetters...)
	}
	addSinkTrial(all, path+".sink."+system, sink, to, more)
	if c.DeadLetter.Sink != nil {
		system, sink = only(*c.DeadLetter.Sink)
		more = c.tryPartitions(path+".dead_letter.to", sink, c.DeadLetter.To)
		addSinkTrial(all, path+".dead_letter.sink."+system, sink, deadLetters, more)
	}
}

func addSinkTrial(all *trial.List, path string, sink connector.SinkConfig, to []trial.Place, more []trial.Trial) {
	t, end := sink.Try(path, to)
	t.Then = append(t.Then, more...)
	all.Add(t, end)
}

// tryPartitions returns the trial that the destination has at least as many partitions as
// the source, if messages keep their partition number.
func (c RouteConfig) tryPartitions(path string, into connector.SinkConfig, topic string) []trial.Trial {
	_, from := only(c.Source)
	source, numbered := from.(connector.PartitionedSource)
	sink, takesNumbers := into.(connector.PartitionedSink)
	if !numbered || !takesNumbers || !sink.FollowsSource() {
		return nil
	}
	return []trial.Trial{{Name: path + ": partitions", Try: func(ctx context.Context) error {
		widest, need, err := widestTopic(ctx, source)
		if err != nil {
			return trial.Notef("not tried: the number of partitions of the source is unknown: %s", trial.Plain(err))
		}
		have, err := sink.Partitions(ctx, topic)
		switch {
		case err != nil:
			return err
		case have == 0 && need > 1:
			return fmt.Errorf("create it with %d partitions, as many as %s has: the broker would create it with its default number,"+
				" and the sink would refuse messages from other partitions", need, widest)
		case have > 0 && have < need:
			return fmt.Errorf("it has %d partitions and %s has %d: the sink would refuse messages from the other partitions",
				have, widest, need)
		}
		return nil
	}}}
}

// widestTopic returns the source's topic with the most partitions, and their number.
func widestTopic(ctx context.Context, source connector.PartitionedSource) (topic string, partitions int, err error) {
	if len(source.Names()) == 0 {
		return "", 0, errors.New("it has a topic pattern")
	}
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
