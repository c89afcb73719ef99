package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// mergeTopics makes one of the topics of a name, for several keys may lead to it: a route writes to
// what another one reads. Names become full ones.
func (p *plan) mergeTopics(all []Topic) (merged []Topic) {
	for _, t := range all {
		t.Name = p.client.Topic(t.Name).Name()
		i := slices.IndexFunc(merged, func(there Topic) bool { return there.Name == t.Name })
		if i < 0 {
			merged = append(merged, t)
			continue
		}
		there := &merged[i]
		if there.OthersCreateIt || t.Partitions > there.Partitions {
			there.Path = t.Path
		}
		there.Partitions = max(there.Partitions, t.Partitions)
		there.WhyNoGrowth = cmp.Or(there.WhyNoGrowth, t.WhyNoGrowth)
		there.WhyNoPartitions = cmp.Or(there.WhyNoPartitions, t.WhyNoPartitions)
		there.OthersCreateIt = there.OthersCreateIt && t.OthersCreateIt
		both := map[string]messaging.Position{}
		maps.Copy(both, t.Subscriptions)
		maps.Copy(both, there.Subscriptions)
		there.Subscriptions = both
	}
	return merged
}

func (p *plan) topic(ctx context.Context, want Topic) error {
	t, object := p.client.Topic(want.Name), "topic "+want.Name
	if strings.HasPrefix(want.Name, "non-persistent://") {
		p.same("%s: not created, because it is not persistent", object)
		return nil
	}
	have, err := t.Partitions(ctx)
	switch missing := errors.Is(err, messaging.ErrNotFound); {
	case err != nil && !missing:
		return err
	case missing && want.OthersCreateIt:
		p.same("%s: not there yet: no subscription is created", object)
		return nil
	case missing:
		p.add(object+": "+partitions(want.Partitions), func(ctx context.Context) error { return t.Create(ctx, want.Partitions) })
	case !want.OthersCreateIt:
		if err := p.partitions(t, object, have, want); err != nil {
			return err
		}
	}
	var there []string
	if err == nil && len(want.Subscriptions) > 0 {
		if there, err = t.Subscriptions(ctx); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Subscriptions)) {
		text := object + ": subscription " + name
		if slices.Contains(there, name) {
			p.same("%s", text)
			continue
		}
		p.add(text, func(ctx context.Context) error { return t.Subscription(name).Create(ctx, want.Subscriptions[name]) })
	}
	return nil
}

// partitions compares the partitions of a topic that exists.
func (p *plan) partitions(t messaging.Topic, object string, have int, want Topic) error {
	needed := max(want.Partitions, 1)
	switch count := max(have, 1); {
	case count == needed:
		p.same("%s: %s", object, partitions(have))
	case count > needed && want.WhyNoPartitions != "":
		return fmt.Errorf("%s has %s and must have none: %s: name another topic", object, partitions(have), want.WhyNoPartitions)
	case count > needed:
		p.same("%s: %s, more than wanted, not changed", object, partitions(have))
	case have == 0:
		return fmt.Errorf("%s has no partitions and must have %d: partitions cannot be added to such a topic: delete it, or name another topic", object, want.Partitions)
	case want.WhyNoGrowth != "":
		return fmt.Errorf("%s has %s and must have %d: partitions cannot be added: %s: name another topic, or keep %d", object, partitions(have), want.Partitions, want.WhyNoGrowth, have)
	default:
		p.policy(object, partitions(have), partitions(want.Partitions), func(ctx context.Context) error { return t.SetPartitions(ctx, want.Partitions) })
	}
	return nil
}

func partitions(n int) string {
	switch n {
	case 0:
		return "no partitions"
	case 1:
		return "1 partition"
	default:
		return fmt.Sprintf("%d partitions", n)
	}
}
