// Package relabel changes valid series before they are encoded. It applies Prometheus' relabelling
// rules, computes the message key from key_labels, and drops samples that the format cannot contain.
// It may import batch, but not remotewrite, format or publish.
package relabel

import (
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// Config is one of Prometheus' relabelling rules, with its keys and defaults. Configuration files
// expand environment variables: write $${1} or $1 for ${1} in the replacement.
type Config struct {
	// SourceLabels are labels: the rule joins their values with Separator and matches the result
	// with Regex. Default: none.
	SourceLabels []string `yaml:"source_labels"`
	// Separator separates the values of the source labels. Default ";".
	Separator string `yaml:"separator"`
	// Regex is anchored at both ends. Default "(.*)".
	Regex string `yaml:"regex"`
	// Modulus is the modulus of action hashmod.
	Modulus uint64 `yaml:"modulus"`
	// TargetLabel is the label that the rule writes.
	TargetLabel string `yaml:"target_label"`
	// Replacement is the value that the rule writes, with $1 for the first group of Regex. Default
	// "$1".
	Replacement string `yaml:"replacement"`
	// Action is replace, keep, drop, keepequal, dropequal, hashmod, labelmap, labeldrop, labelkeep,
	// lowercase or uppercase. Default replace.
	Action string `yaml:"action"`
}

// SetDefaults sets Prometheus' defaults.
func (c *Config) SetDefaults() {
	d := &relabel.DefaultRelabelConfig
	*c = Config{Separator: d.Separator, Regex: d.Regex.String(), Replacement: d.Replacement, Action: string(d.Action)}
}

// Validate returns the first fault, with the text of Prometheus.
func (c Config) Validate() error {
	_, err := c.compile()
	return err
}

func (c Config) compile() (*relabel.Config, error) {
	regex := relabel.DefaultRelabelConfig.Regex // must be this pointer, because relabel compares pointers
	if c.Regex != regex.String() {
		var err error
		if regex, err = relabel.NewRegexp(c.Regex); err != nil {
			return nil, config.Fault("regex", "must be a regular expression: %s", err)
		}
	}
	rule := &relabel.Config{
		Separator: c.Separator, Regex: regex, Modulus: c.Modulus, TargetLabel: c.TargetLabel, Replacement: c.Replacement,
		NameValidationScheme: model.UTF8Validation,
	}
	for _, name := range c.SourceLabels {
		rule.SourceLabels = append(rule.SourceLabels, model.LabelName(name))
	}
	setAction := func(v any) error { *v.(*string) = c.Action; return nil } //nolint:errcheck // relabel gives a *string
	if err := rule.Action.UnmarshalYAML(setAction); err != nil {
		return nil, config.Fault("action", "%s", err)
	}
	return rule, rule.Validate(model.UTF8Validation)
}

// Rules drop and change series.
type Rules struct {
	relabel     []*relabel.Config
	keyLabels   []string // sorted; empty: all labels
	samplesOnly bool
}

// New returns the rules of a valid configuration, nil if there are none. samplesOnly makes the
// rules drop histograms and exemplars.
func New(configs []Config, keyLabels []string, samplesOnly bool) *Rules {
	if len(configs)+len(keyLabels) == 0 && !samplesOnly {
		return nil
	}
	r := &Rules{keyLabels: slices.Sorted(slices.Values(keyLabels)), samplesOnly: samplesOnly}
	for _, c := range configs {
		rule, err := c.compile()
		if err != nil {
			panic("nightingale: " + err.Error()) // Validate has checked it
		}
		r.relabel = append(r.relabel, rule)
	}
	return r
}

// Apply removes series that are not to be published from the batch, changes labels, and computes
// the keys of changed series again. scratch is reusable working memory.
func (r *Rules) Apply(b *batch.Batch, scratch []byte) (filtered batch.Filtered, _ []byte) {
	if r == nil {
		return filtered, scratch
	}
	var builder *labels.Builder
	if len(r.relabel) > 0 {
		builder = labels.NewBuilder(labels.EmptyLabels())
	}
	kept := b.Series[:0]
	for _, s := range b.Series {
		if builder != nil {
			changed, reason := r.relabelSeries(b, &s, builder)
			if reason >= 0 {
				filtered[reason].Add(s.Counts())
				continue
			}
			if changed {
				s.Key, scratch = batch.KeyOf(batch.Slice(b.Labels, s.Labels), scratch)
			}
		}
		if len(r.keyLabels) > 0 {
			s.Key, scratch = keyOf(batch.Slice(b.Labels, s.Labels), r.keyLabels, scratch)
		}
		if r.samplesOnly && s.Histograms.Len()+s.Exemplars.Len() > 0 {
			filtered[batch.FilteredByFormat].Histograms += s.Histograms.Len()
			filtered[batch.FilteredByFormat].Exemplars += s.Exemplars.Len()
			s.Histograms, s.Exemplars, s.Raw = batch.Extent{}, batch.Extent{}, batch.Span{}
		}
		kept = append(kept, s)
	}
	b.Series = kept
	return filtered, scratch
}

// relabelSeries applies Prometheus' rules to a series. It returns the reason for which they drop
// it, or -1.
func (r *Rules) relabelSeries(b *batch.Batch, s *batch.Series, builder *labels.Builder) (changed bool, reason int) {
	builder.Reset(labels.EmptyLabels())
	old := batch.Slice(b.Labels, s.Labels)
	for _, l := range old {
		builder.Set(l.Name, l.Value)
	}
	if !relabel.ProcessBuilder(builder, r.relabel...) {
		return false, batch.FilteredByRelabel
	}
	added := batch.Start(b.Labels)
	builder.Range(func(l labels.Label) {
		b.Labels = append(b.Labels, batch.Label{Name: l.Name, Value: l.Value})
	})
	added = batch.Until(added, b.Labels)
	relabelled := batch.Slice(b.Labels, added)
	switch {
	case len(relabelled) == 0:
		return false, batch.FilteredByRelabel
	case !slices.ContainsFunc(relabelled, func(l batch.Label) bool { return l.Name == batch.NameLabel }):
		return false, batch.FilteredNameless
	}
	slices.SortFunc(relabelled, func(a, b batch.Label) int { return strings.Compare(a.Name, b.Name) })
	if slices.Equal(relabelled, old) {
		clear(relabelled)
		b.Labels = b.Labels[:added.From]
		return false, -1
	}
	s.Labels, s.Refs, s.Raw = added, batch.Extent{}, batch.Span{}
	return true, -1
}

// keyOf returns the key of only those labels whose names are in names. Both lists are sorted.
func keyOf(labels []batch.Label, names []string, scratch []byte) (uint64, []byte) {
	var chosen [16]batch.Label
	part := chosen[:0]
	for i := range labels {
		for len(names) > 0 && names[0] < labels[i].Name {
			names = names[1:]
		}
		if len(names) > 0 && names[0] == labels[i].Name {
			part = append(part, labels[i])
		}
	}
	return batch.KeyOf(part, scratch)
}
