// Package rules filters and changes series between validation and encoding: with selectors in
// PromQL's notation, Prometheus' relabelling rules, and the labels of the message key.
package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/aviaryhq/aviary/internal/config"
)

// FilterConfig says which series are published. It matches the labels that the sender sent, before
// relabel_configs. Series that it drops count as written for the sender, and in
// nightingale_samples_filtered_total.
type FilterConfig struct {
	// Keep lists selectors in PromQL's notation, such as up{job=~"api|web"}: a series must match at
	// least one of them. Default: none, which keeps all series.
	Keep []Selector `yaml:"keep"`
	// Drop lists selectors: a series that matches any of them is dropped, even if it matches keep.
	// Default: none.
	Drop []Selector `yaml:"drop"`
}

// RelabelConfig is one of Prometheus' relabelling rules, with its keys and defaults. Configuration
// files expand environment variables: write $${1} or $1 for ${1} in the replacement.
type RelabelConfig struct {
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
func (c *RelabelConfig) SetDefaults() {
	d := &relabel.DefaultRelabelConfig
	*c = RelabelConfig{Separator: d.Separator, Regex: d.Regex.String(), Replacement: d.Replacement, Action: string(d.Action)}
}

// Validate returns the first fault, with the text of Prometheus.
func (c RelabelConfig) Validate() error {
	_, err := c.compile()
	return err
}

func (c RelabelConfig) compile() (*relabel.Config, error) {
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
	if err := rule.Action.UnmarshalYAML(func(v any) error { *v.(*string) = c.Action; return nil }); err != nil { //nolint:errcheck // relabel gives a *string
		return nil, config.Fault("action", "%s", err)
	}
	if err := rule.Validate(model.UTF8Validation); err != nil {
		return nil, err
	}
	return rule, nil
}

// Rules filter and change series between validation and encoding.
type Rules struct {
	keep, drop  []Selector
	relabel     []*relabel.Config
	keyLabels   []string // sorted; empty: all labels
	samplesOnly bool
}

// New returns the rules of a valid configuration, nil if there are none. samplesOnly makes the
// rules drop histograms and exemplars.
func New(filter FilterConfig, relabelConfigs []RelabelConfig, keyLabels []string, samplesOnly bool) *Rules {
	r := &Rules{keep: filter.Keep, drop: filter.Drop, keyLabels: slices.Sorted(slices.Values(keyLabels)), samplesOnly: samplesOnly}
	for _, c := range relabelConfigs {
		rule, err := c.compile()
		if err != nil {
			panic("nightingale: " + err.Error()) // Validate has checked it
		}
		r.relabel = append(r.relabel, rule)
	}
	if len(r.keep)+len(r.drop)+len(r.relabel)+len(r.keyLabels) == 0 && !r.samplesOnly {
		return nil
	}
	return r
}

// Apply removes series that are not to be published from the batch, changes labels, and computes
// the keys of changed series again. scratch is reusable working memory.
func (r *Rules) Apply(b *batch.Batch, scratch []byte) (out batch.Filtered, _ []byte) {
	if r == nil {
		return out, scratch
	}
	var builder *promlabels.Builder
	if len(r.relabel) > 0 {
		builder = promlabels.NewBuilder(promlabels.EmptyLabels())
	}
	kept := b.Series[:0]
	for _, s := range b.Series {
		labels := batch.Slice(b.Labels, s.Labels)
		if !r.wants(labels) {
			out[batch.FilteredByFilter].Add(&s)
			continue
		}
		if builder != nil {
			var changed bool
			var why int
			if changed, why = r.change(b, &s, builder); why >= 0 {
				out[why].Add(&s)
				continue
			}
			if labels = batch.Slice(b.Labels, s.Labels); changed {
				s.Key, scratch = batch.KeyOf(labels, scratch)
			}
		}
		if len(r.keyLabels) > 0 {
			s.Key, scratch = keyOf(labels, r.keyLabels, scratch)
		}
		if r.samplesOnly && s.Histograms.Len()+s.Exemplars.Len() > 0 {
			out[batch.FilteredByFormat].Histograms += s.Histograms.Len()
			out[batch.FilteredByFormat].Exemplars += s.Exemplars.Len()
			s.Histograms, s.Exemplars, s.Raw = batch.Extent{}, batch.Extent{}, batch.Span{}
		}
		kept = append(kept, s)
	}
	b.Series = kept
	return out, scratch
}

func (r *Rules) wants(labels []batch.Label) bool {
	matches := func(s Selector) bool { return s.matches(labels) }
	if len(r.keep) > 0 && !slices.ContainsFunc(r.keep, matches) {
		return false
	}
	return len(r.drop) == 0 || !slices.ContainsFunc(r.drop, matches)
}

// change relabels a series. why is the reason for dropping the series, or -1.
func (r *Rules) change(b *batch.Batch, s *batch.Series, builder *promlabels.Builder) (changed bool, why int) {
	builder.Reset(promlabels.EmptyLabels())
	old := batch.Slice(b.Labels, s.Labels)
	for _, l := range old {
		builder.Set(l.Name, l.Value)
	}
	if !relabel.ProcessBuilder(builder, r.relabel...) {
		return false, batch.FilteredByRelabel
	}
	fresh := batch.Start(b.Labels)
	named, sorted := false, true
	builder.Range(func(l promlabels.Label) {
		named = named || l.Name == batch.NameLabel
		sorted = sorted && (len(b.Labels) == int(fresh.From) || b.Labels[len(b.Labels)-1].Name < l.Name)
		b.Labels = append(b.Labels, batch.Label{Name: l.Name, Value: l.Value})
	})
	fresh = batch.Until(fresh, b.Labels)
	labels := batch.Slice(b.Labels, fresh)
	switch {
	case len(labels) == 0:
		return false, batch.FilteredByRelabel
	case !named:
		return false, batch.FilteredNameless
	}
	if !sorted {
		slices.SortFunc(labels, func(a, b batch.Label) int { return cmp.Compare(a.Name, b.Name) })
	}
	if slices.Equal(labels, batch.Slice(b.Labels, s.Labels)) {
		clear(labels)
		b.Labels = b.Labels[:fresh.From]
		return false, -1
	}
	s.Labels, s.Refs, s.Raw = fresh, batch.Extent{}, batch.Span{}
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

// Selector is a series selector in PromQL's notation: name{label="value",...} with
// the operators =, !=, =~ and !~.
type Selector struct {
	text     string
	matchers []*promlabels.Matcher
}

// ParseSelector reads a selector.
func ParseSelector(text string) (Selector, error) {
	s := Selector{text: text}
	p := &selectorParser{rest: strings.TrimSpace(text)}
	if name := p.word(true); name != "" {
		s.matchers = append(s.matchers, promlabels.MustNewMatcher(promlabels.MatchEqual, batch.NameLabel, name))
	}
	if p.take("{") {
		for !p.take("}") {
			m, err := p.matcher()
			if err != nil {
				return Selector{}, err
			}
			s.matchers = append(s.matchers, m)
			if !p.take(",") && !strings.HasPrefix(p.rest, "}") {
				return Selector{}, p.fail("',' or '}'")
			}
		}
	}
	if p.rest != "" {
		return Selector{}, p.fail("the end")
	}
	if len(s.matchers) == 0 {
		return Selector{}, errors.New(`must select something, such as up or {job="api"}`)
	}
	return s, nil
}

// String returns the text that was read.
func (s Selector) String() string { return s.text }

// UnmarshalText reads what [ParseSelector] reads.
func (s *Selector) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSelector(string(text))
	return err
}

// MarshalText writes what String returns.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.text), nil }

func (s Selector) matches(labels []batch.Label) bool {
	for _, m := range s.matchers {
		value := "" // value of a missing label, as in PromQL
		for i := range labels {
			if labels[i].Name == m.Name {
				value = labels[i].Value
				break
			}
		}
		if !m.Matches(value) {
			return false
		}
	}
	return true
}

type selectorParser struct{ rest string }

func (p *selectorParser) fail(wanted string) error {
	return fmt.Errorf("must be a PromQL selector such as up{job=~\"api|web\"}: expected %s at %q", wanted, truncate.Text(p.rest, 32))
}

func (p *selectorParser) take(token string) bool {
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = strings.TrimLeft(rest, " \t\n")
	}
	return ok
}

// word reads a name. colons says that it may contain colons, as metric names may.
func (p *selectorParser) word(colons bool) string {
	n := strings.IndexFunc(p.rest, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && (r != ':' || !colons)
	})
	if n < 0 {
		n = len(p.rest)
	}
	if n > 0 && p.rest[0] >= '0' && p.rest[0] <= '9' {
		return ""
	}
	word := p.rest[:n]
	p.rest = strings.TrimLeft(p.rest[n:], " \t\n")
	return word
}

func (p *selectorParser) quoted() (string, error) {
	prefix, err := quotedPrefix(p.rest)
	if err != nil {
		return "", p.fail("a quoted text")
	}
	p.rest = strings.TrimLeft(p.rest[len(prefix):], " \t\n")
	return unquote(prefix)
}

func (p *selectorParser) matcher() (*promlabels.Matcher, error) {
	name := p.word(false)
	if name == "" {
		var err error
		if name, err = p.quoted(); err != nil {
			return nil, p.fail("a label's name")
		}
		if p.rest == "" || p.rest[0] == ',' || p.rest[0] == '}' { // {"name"}
			return promlabels.NewMatcher(promlabels.MatchEqual, batch.NameLabel, name)
		}
	}
	for _, operator := range []struct {
		token string
		kind  promlabels.MatchType
	}{
		{"=~", promlabels.MatchRegexp}, {"!~", promlabels.MatchNotRegexp}, {"!=", promlabels.MatchNotEqual}, {"=", promlabels.MatchEqual},
	} {
		if p.take(operator.token) {
			value, err := p.quoted()
			if err != nil {
				return nil, err
			}
			m, err := promlabels.NewMatcher(operator.kind, name, value)
			if err != nil { // NewMatcher returns only Go's error of the regular expression
				return nil, fmt.Errorf("must be a PromQL selector such as up{job=~\"api|web\"}: the regular expression %q of %s: %w",
					truncate.Text(value, 32), truncate.Text(name, 32), err)
			}
			return m, nil
		}
	}
	return nil, p.fail("=, !=, =~ or !~")
}

// quotedPrefix returns the quoted text at the beginning of s.
func quotedPrefix(s string) (string, error) {
	if strings.HasPrefix(s, "'") { // allowed in PromQL, but not in Go
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case '\'':
				return s[:i+1], nil
			}
		}
		return "", strconv.ErrSyntax
	}
	return strconv.QuotedPrefix(s)
}

func unquote(s string) (string, error) {
	if s[0] == '\'' {
		inner := strings.ReplaceAll(s[1:len(s)-1], `\'`, `'`)
		s = `"` + strings.ReplaceAll(inner, `"`, `\"`) + `"`
	}
	return strconv.Unquote(s)
}
