package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// plan is the difference between what a cluster has and what it must have.
type plan struct {
	client  *messaging.Client
	lines   []line
	tenants []string // that the plan has looked at
}

// line is a line of the diff. Lines of changes have do, which makes the change.
type line struct {
	sign, text string
	do         func(context.Context) error
}

// Signs of lines.
const (
	stays = "  "
	added = "+ "
	gone  = "- "
)

func (p *plan) same(format string, args ...any) {
	p.lines = append(p.lines, line{sign: stays, text: fmt.Sprintf(format, args...)})
}

func (p *plan) add(text string, do func(context.Context) error) {
	p.lines = append(p.lines, line{sign: added, text: text, do: do})
}

// policy compares a policy of an object. have is empty if the object has none.
func (p *plan) policy(object, have, want string, do func(context.Context) error) {
	if have == want {
		p.same("%s: %s", object, have)
		return
	}
	if have != "" {
		p.lines = append(p.lines, line{sign: gone, text: object + ": " + have})
	}
	p.add(object+": "+want, do)
}

func (p *plan) changes() (n int) {
	for _, l := range p.lines {
		if l.do != nil {
			n++
		}
	}
	return n
}

// texts returns the changes.
func (p *plan) texts() (all []string) {
	for _, l := range p.lines {
		if l.do != nil {
			all = append(all, l.text)
		}
	}
	return all
}

func (p *plan) write(out io.Writer) error {
	for _, l := range p.lines {
		fault := config.FieldError{Problem: l.text} // without what may be a secret
		if _, err := fmt.Fprintf(out, "%s%s\n", l.sign, fault.Error()); err != nil {
			return err
		}
	}
	return nil
}

// make looks at the cluster. It goes on after an error, and returns all of them.
func (p *plan) make(ctx context.Context, c Cluster) error {
	p.same("%s.admin_url %s", c.Path, c.Pulsar.AdminURL)
	var errs []error
	for _, n := range c.Namespaces {
		errs = append(errs, p.namespace(ctx, n))
	}
	for _, t := range c.Topics {
		if err := p.topic(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.Path, err))
		}
	}
	for _, note := range c.Notes {
		p.same("%s", note)
	}
	return errors.Join(errs...)
}

func (p *plan) namespace(ctx context.Context, want Namespace) error {
	n, object := p.client.Namespace(want.Name), "namespace "+want.Name
	have, err := n.ReplicationClusters(ctx)
	switch exists := !errors.Is(err, messaging.ErrNotFound); {
	case err != nil && exists:
		return err
	case !exists:
		if err := p.tenant(ctx, want.Name, want.Clusters); err != nil {
			return err
		}
		p.add(object, n.Create)
	default:
		p.same("%s", object)
	}
	if more := lacking(want.Clusters, have); len(more) > 0 {
		if err := p.tenant(ctx, want.Name, want.Clusters); err != nil {
			return err
		}
		clusters := slices.Concat(have, more)
		p.policy(object+": clusters", names(have), names(clusters), func(ctx context.Context) error {
			return n.SetReplicationClusters(ctx, clusters)
		})
	} else if len(want.Clusters) > 0 {
		p.same("%s: clusters: %s", object, names(have))
	}
	return errors.Join(p.deduplication(ctx, n, object, want), p.subscriptions(ctx, n, object, want), p.bounds(ctx, n, object, want))
}

// tenant compares the tenant of a namespace. A role that may not look at it goes on as if the tenant
// was as wanted.
func (p *plan) tenant(ctx context.Context, namespace string, want []string) error {
	name, _, _ := strings.Cut(namespace, "/")
	if slices.Contains(p.tenants, name) {
		return nil
	}
	p.tenants = append(p.tenants, name)
	t, object := p.client.Tenant(name), "tenant "+name
	have, err := t.AllowedClusters(ctx)
	switch more := lacking(want, have); {
	case errors.Is(err, messaging.ErrAuthorization):
		p.same("%s: not known, because this role may not look at it", object)
	case errors.Is(err, messaging.ErrNotFound):
		if len(want) == 0 {
			if want, err = p.client.Clusters(ctx); err != nil {
				return err
			}
		}
		p.add(object+": clusters: "+names(want), func(ctx context.Context) error { return t.Create(ctx, want) })
	case err != nil:
		return err
	case len(more) > 0:
		clusters := slices.Concat(have, more)
		p.policy(object+": clusters", names(have), names(clusters), func(ctx context.Context) error { return t.SetAllowedClusters(ctx, clusters) })
	}
	return nil
}

// unset makes no error of a namespace that does not exist yet: it has no policies.
func unset(err error) error {
	if errors.Is(err, messaging.ErrNotFound) {
		return nil
	}
	return err
}

func (p *plan) deduplication(ctx context.Context, n messaging.Namespace, object string, want Namespace) error {
	if !want.Deduplication {
		return nil
	}
	on, set, err := n.Deduplication(ctx)
	if unset(err) != nil {
		return err
	}
	have := ""
	if set {
		have = map[bool]string{true: "on", false: "off"}[on]
	}
	p.policy(object+": deduplication", have, "on", func(ctx context.Context) error { return n.SetDeduplication(ctx, true) })
	return nil
}

func (p *plan) subscriptions(ctx context.Context, n messaging.Namespace, object string, want Namespace) error {
	if !want.KeepSubscriptions {
		return nil
	}
	after, set, err := n.SubscriptionExpiration(ctx)
	if unset(err) != nil {
		return err
	}
	have := ""
	if set {
		have = expiration(after)
	}
	p.policy(object+": subscriptions expire", have, expiration(0), func(ctx context.Context) error { return n.SetSubscriptionExpiration(ctx, 0) })
	return nil
}

// bounds compares retention and backlog quota. Pulsar refuses a quota that is not below the
// retention: a quota that becomes smaller is set first, another one last.
func (p *plan) bounds(ctx context.Context, n messaging.Namespace, object string, want Namespace) error {
	wanted, change := want.retention()
	kept, set, err := n.Retention(ctx)
	retention := func() {
		if change {
			p.policy(object+": retention", retentionText(kept, set), retentionText(wanted, true), func(ctx context.Context) error {
				return n.SetRetention(ctx, wanted)
			})
		}
	}
	if unset(err) != nil {
		return err
	}
	quota := messaging.BacklogQuota{Bytes: int64(want.BacklogQuota.Bytes), Policy: want.BacklogQuota.Policy}
	if quota.Bytes == 0 {
		retention()
		return nil
	}
	held, quotaSet, err := n.BacklogQuota(ctx)
	if unset(err) != nil {
		return err
	}
	first := quotaSet && quota.Bytes < held.Bytes
	if !first {
		retention()
	}
	p.policy(object+": backlog quota", quotaText(held, quotaSet), quotaText(quota, true), func(ctx context.Context) error {
		return n.SetBacklogQuota(ctx, quota)
	})
	if first {
		retention()
	}
	return nil
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
	case missing && want.Foreign:
		p.same("%s: does not exist: whoever publishes to it creates it", object)
		return nil
	case missing:
		p.add(object+": "+partitions(want.Partitions), func(ctx context.Context) error { return t.Create(ctx, want.Partitions) })
	case want.Foreign:
	default:
		if err := p.partitions(t, object, have, want); err != nil {
			return err
		}
	}
	if want.Subscription == "" {
		return nil
	}
	var there []string
	if err == nil {
		if there, err = t.Subscriptions(ctx); err != nil {
			return err
		}
	}
	object += ": subscription " + want.Subscription
	if slices.Contains(there, want.Subscription) {
		p.same("%s", object)
		return nil
	}
	p.add(object, func(ctx context.Context) error { return t.Subscription(want.Subscription).Create(ctx, want.From) })
	return nil
}

// partitions compares the partitions of a topic that exists.
func (p *plan) partitions(t messaging.Topic, object string, have int, want Topic) error {
	needed := max(want.Partitions, 1)
	switch count := max(have, 1); {
	case count == needed:
		p.same("%s: %s", object, partitions(have))
	case count > needed && (want.Partitions > 0 || want.Fixed == ""):
		p.same("%s: %s, which stay: %s would do", object, partitions(have), partitions(want.Partitions))
	case count > needed:
		return fmt.Errorf("%s has %s and must have none: %s: delete it", object, partitions(have), want.Fixed)
	case have == 0:
		return fmt.Errorf("%s has no partitions and must have %d: partitions cannot be added to such a topic: delete it, or name another one", object, want.Partitions)
	case want.Fixed != "":
		return fmt.Errorf("%s has %s and must have %d: partitions cannot be added: %s: name another topic, or keep %d", object, partitions(have), want.Partitions, want.Fixed, have)
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

func names(all []string) string { return strings.Join(all, ", ") }

func expiration(after time.Duration) string {
	if after == 0 {
		return "never"
	}
	return "after " + after.String()
}

func retentionText(r messaging.Retention, set bool) string {
	if !set {
		return ""
	}
	age, size := r.Time.String(), config.Bytes(r.Size).String()
	if r.Time == messaging.Unlimited {
		age = "any age"
	}
	if r.Size == messaging.Unlimited {
		size = "any size"
	}
	return age + ", " + size
}

func quotaText(q messaging.BacklogQuota, set bool) string {
	if !set {
		return ""
	}
	return config.Bytes(q.Bytes).String() + ", " + string(q.Policy)
}
