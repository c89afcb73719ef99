// Package setup creates what a service needs at Pulsar: tenants, namespaces with their policies,
// topics and subscriptions. It compares the wanted state with the actual one, prints the difference,
// and applies it. It deletes nothing, except policy values that it replaces. The package imports
// internal/config and pkg/messaging, no service.
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

// Cluster is what one Pulsar cluster must have.
type Cluster struct {
	Path       string // of the cluster's section in the configuration
	Pulsar     messaging.Config
	Namespaces []Namespace
	Topics     []Topic
	Notes      []string // what cannot be created before the service runs
}

// Namespace is a namespace that must exist, with its policies.
type Namespace struct {
	Path string // of the key that leads to it
	Name string // tenant/namespace
	Policies
	Clusters          []string // empty: not changed
	Deduplication     bool     // false: not changed
	KeepSubscriptions bool     // subscriptions do not expire
	NeedsRetention    bool     // the service reads what is acknowledged
}

// Topic is a topic that must exist.
type Topic struct {
	Path       string // of the key that leads to it
	Name       string
	Partitions int // at least; 0: it is created without partitions
	// WhyNoGrowth says why partitions cannot be added; empty: they can.
	WhyNoGrowth string
	// WhyNoPartitions says why the topic must have none; empty: more than wanted may stay.
	WhyNoPartitions string
	OthersCreateIt  bool                          // only the subscriptions are created
	Subscriptions   map[string]messaging.Position // by name: where they begin
}

// AddNamespace adds a namespace. Its deduplication is on if it is on in one of the namespaces of
// that name.
func (c *Cluster) AddNamespace(n Namespace) {
	for i, there := range c.Namespaces {
		if there.Name == n.Name {
			c.Namespaces[i].Deduplication = there.Deduplication || n.Deduplication
			return
		}
	}
	c.Namespaces = append(c.Namespaces, n)
}

// AddTopic adds a topic with its namespace, which gets the policies of s. If the topic's name has
// placeholders in braces, it adds only the namespace, and that only if it has none.
func (c *Cluster) AddTopic(t Topic, s Section) {
	namespace, fixed := NamespaceOf(t.Name)
	if fixed {
		c.AddNamespace(Namespace{Path: t.Path, Name: namespace, Policies: s.Policies, Clusters: s.Clusters, Deduplication: s.Deduplication})
	}
	switch {
	case !strings.Contains(t.Name, "{"):
		c.Topics = append(c.Topics, t)
	case fixed:
		c.Notes = append(c.Notes, t.Path+" "+t.Name+": its topics depend on what is sent, and are not created")
	default:
		c.Notes = append(c.Notes, t.Path+" "+t.Name+": its namespaces depend on what is sent: create them before")
	}
}

// NamespaceOf returns the namespace of a topic, tenant/namespace. The topic's name may have
// placeholders in braces; fixed is false if they decide about the namespace.
func NamespaceOf(topic string) (name string, fixed bool) {
	_, rest, full := strings.Cut(topic, "://")
	if !full {
		rest = topic
	}
	parts := strings.Split(rest, "/")
	switch {
	case len(parts) == 1 && !strings.Contains(topic, "{"):
		return "public/default", true
	case len(parts) < 3 || strings.Contains(parts[0]+parts[1], "{"):
		return "", false
	default:
		return parts[0] + "/" + parts[1], true
	}
}

// settleTimeout bounds how long changes may take to become visible, at other brokers too.
const settleTimeout = 30 * time.Second

const (
	settlePause = 200 * time.Millisecond // between two looks
	attempts    = 3                      // of a change that fails
)

// Run prints to out the heading and what the clusters lack, as a diff, and with apply creates it. It
// returns how many changes there were. It makes none if one of the clusters cannot be given what it
// needs, and prints nothing if a cluster is not configured for this.
func Run(ctx context.Context, clusters []Cluster, apply bool, heading string, out io.Writer) (changes int, err error) {
	var all []*plan
	var errs []error
	for _, c := range clusters {
		p, closeClient, err := c.open()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer closeClient()
		all = append(all, p)
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(out, heading); err != nil {
		return 0, err
	}
	for i, p := range all {
		errs = append(errs, p.compare(ctx, clusters[i]), p.write(out))
		changes += p.changes()
	}
	if err := errors.Join(errs...); err != nil || !apply {
		return changes, err
	}
	for i, p := range all {
		if err := p.apply(ctx, clusters[i]); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// open prepares the client of the cluster. It connects to nothing.
func (c Cluster) open() (p *plan, closeClient func(), err error) {
	if c.Pulsar.AdminURL == "" {
		return nil, nil, config.Fault(c.Path+".admin_url", "must be set for -setup and -setup.plan: the address of the brokers' admin API")
	}
	client, err := messaging.Dial(context.Background(), c.Pulsar)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	return &plan{client: client}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = client.Close(ctx) // the process ends
	}, nil
}

// apply makes the changes, looks what is left, and makes that, until nothing is. Another process may
// have made the same change at the same time, and a change may take some time to become visible.
func (p *plan) apply(ctx context.Context, c Cluster) error {
	failed := p.makeChanges(ctx)
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		now := &plan{client: p.client}
		switch err := now.compare(ctx, c); {
		case err != nil:
			return errors.Join(failed, err)
		case now.changes() == 0:
			return nil
		case failed != nil && attempt >= attempts:
			return failed
		}
		select {
		case <-time.After(settlePause):
		case <-ctx.Done():
			return fmt.Errorf("%s: changes were accepted and are not visible: %s: %w", c.Path, strings.Join(now.changeTexts(), "; "), ctx.Err())
		}
		failed = now.makeChanges(ctx)
	}
}

// makeChanges makes the changes in their order, up to the first that fails. What exists already was
// created since the plan was made.
func (p *plan) makeChanges(ctx context.Context) error {
	for _, l := range p.lines {
		if l.change == nil {
			continue
		}
		if err := l.change(ctx); err != nil && !errors.Is(err, messaging.ErrExists) {
			return err
		}
	}
	return nil
}

// lacking returns the names of want that have does not hold.
func lacking(want, have []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(have, name) })
}
