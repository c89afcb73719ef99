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

// line is a line of the diff. Lines of changes have change, which makes it.
type line struct {
	sign, text string
	change     func(context.Context) error
}

// Signs of lines.
const (
	stays    = "  "
	added    = "+ "
	replaced = "- "
)

func (p *plan) same(format string, args ...any) {
	p.lines = append(p.lines, line{sign: stays, text: fmt.Sprintf(format, args...)})
}

func (p *plan) add(text string, change func(context.Context) error) {
	p.lines = append(p.lines, line{sign: added, text: text, change: change})
}

// policy compares a policy of an object. have is empty if the object has none.
func (p *plan) policy(object, have, want string, change func(context.Context) error) {
	if have == want {
		p.same("%s: %s", object, have)
		return
	}
	if have != "" {
		p.lines = append(p.lines, line{sign: replaced, text: object + ": " + have})
	}
	p.add(object+": "+want, change)
}

func (p *plan) changes() int { return len(p.changeTexts()) }

// changeTexts returns what the changes are.
func (p *plan) changeTexts() (all []string) {
	for _, l := range p.lines {
		if l.change != nil {
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

// compare looks at the cluster. It goes on after an error, and returns all of them.
func (p *plan) compare(ctx context.Context, c Cluster) error {
	p.same("%s.admin_url %s", c.Path, c.Pulsar.AdminURL)
	var errs []error
	for _, n := range c.Namespaces {
		if err := p.namespace(ctx, n); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.Path, err))
		}
	}
	for _, t := range p.mergeTopics(c.Topics) {
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
	if err := p.ownCluster(ctx, want.Clusters); err != nil {
		return err
	}
	have, err := n.ReplicationClusters(ctx)
	if ignoreNotFound(err) != nil {
		return err
	}
	more, missing := lacking(want.Clusters, have), err != nil
	if missing || len(more) > 0 {
		if err := p.tenant(ctx, want.Name, want.Clusters); err != nil {
			return err
		}
	}
	if missing {
		p.add(object, n.Create)
	} else {
		p.same("%s", object)
	}
	if len(want.Clusters) > 0 {
		p.policy(object+": clusters", names(have), names(slices.Concat(have, more)), func(ctx context.Context) error {
			now, err := n.ReplicationClusters(ctx) // a new namespace has this cluster
			if err != nil {
				return err
			}
			return n.SetReplicationClusters(ctx, slices.Concat(now, lacking(want.Clusters, now)))
		})
	}
	return errors.Join(p.deduplication(ctx, n, object, want), p.subscriptions(ctx, n, object, want), p.retentionAndQuota(ctx, n, object, want))
}

// ownCluster returns an error if clusters lacks this one: the namespace would leave it. Only a
// superuser may ask for its name.
func (p *plan) ownCluster(ctx context.Context, clusters []string) error {
	if len(clusters) == 0 {
		return nil
	}
	own, err := p.client.ClusterName(ctx)
	switch {
	case errors.Is(err, messaging.ErrAuthorization):
		return nil
	case err == nil && !slices.Contains(clusters, own):
		return fmt.Errorf("setup.clusters lacks %s, the cluster of this admin_url", own)
	default:
		return err
	}
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

// ignoreNotFound makes no error of a namespace that does not exist yet: it has no policies.
func ignoreNotFound(err error) error {
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
	if ignoreNotFound(err) != nil {
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
	if ignoreNotFound(err) != nil {
		return err
	}
	have := ""
	if set {
		have = expiration(after)
	}
	p.policy(object+": subscriptions expire", have, expiration(0), func(ctx context.Context) error { return n.SetSubscriptionExpiration(ctx, 0) })
	return nil
}

// retentionAndQuota compares both. Pulsar refuses a quota that is not below the retention: a quota
// that becomes smaller is set first, another one last.
func (p *plan) retentionAndQuota(ctx context.Context, n messaging.Namespace, object string, want Namespace) error {
	kept, keptSet, err := n.Retention(ctx)
	if ignoreNotFound(err) != nil {
		return err
	}
	held, heldSet, err := n.BacklogQuota(ctx)
	if ignoreNotFound(err) != nil {
		return err
	}
	retention, setRetention := want.retention()
	if !setRetention {
		retention = kept
	}
	quota, setQuota := messaging.BacklogQuota{Bytes: int64(want.BacklogQuota.Bytes), Policy: want.BacklogQuota.Policy}, want.BacklogQuota.Bytes > 0
	if !setQuota {
		quota = held
	}
	wantedRetention, wantedQuota := retentionText(retention, true), quotaText(quota, true)
	if (setRetention || setQuota) && retention.Time > 0 && retention.Size > 0 && quota.Bytes >= retention.Size {
		return fmt.Errorf("setup: %s would have retention %s and backlog quota %s: Pulsar wants a quota below the size", object, wantedRetention, wantedQuota)
	}
	compareQuota := func() {
		if setQuota {
			p.policy(object+": backlog quota", quotaText(held, heldSet), wantedQuota, func(ctx context.Context) error { return n.SetBacklogQuota(ctx, quota) })
		} else if held.Policy == messaging.EvictBacklog {
			p.same("%s: backlog quota: %s: messages can be lost", object, wantedQuota)
		}
	}
	smaller := quota.Bytes < held.Bytes
	if smaller {
		compareQuota()
	}
	if setRetention {
		if keptSet && (below(int64(retention.Time), int64(kept.Time)) || below(retention.Size, kept.Size)) {
			wantedRetention += " (smaller: brokers delete what is older)"
		}
		p.policy(object+": retention", retentionText(kept, keptSet), wantedRetention, func(ctx context.Context) error { return n.SetRetention(ctx, retention) })
	} else if want.NeedsRetention && kept == (messaging.Retention{}) {
		p.same("%s: retention: not set, and the service needs it: set setup.retention", object)
	}
	if !smaller {
		compareQuota()
	}
	return nil
}

// below compares bounds that may be unlimited.
func below(a, b int64) bool {
	return a != messaging.Unlimited && (a < b || b == messaging.Unlimited)
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
