package nightingale

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/door"
)

// FilterConfig says which series are published. It looks at labels as they came, before relabel_configs. What it leaves out counts as written
// for the sender, and in nightingale_samples_filtered_total.
type FilterConfig struct {
	// Keep lists selectors in PromQL's notation, such as up{job=~"api|web"}: a series must match one of them. Default: none, which keeps all.
	Keep []Selector `yaml:"keep"`
	// Drop lists selectors: a series must match none of them, also not one that keep keeps. Default: none.
	Drop []Selector `yaml:"drop"`
}

// RelabelConfig is one of Prometheus' relabelling rules, with its keys and defaults. The environment is expanded in configuration files: a
// ${1} in the replacement is written $${1}, or $1.
type RelabelConfig struct {
	// SourceLabels are the labels whose values are joined by Separator and matched by Regex. Default: none.
	SourceLabels []string `yaml:"source_labels"`
	// Separator stands between the values of the source labels. Default ";".
	Separator string `yaml:"separator"`
	// Regex is anchored at both ends. Default "(.*)".
	Regex string `yaml:"regex"`
	// Modulus of action hashmod.
	Modulus uint64 `yaml:"modulus"`
	// TargetLabel is the label that is written.
	TargetLabel string `yaml:"target_label"`
	// Replacement is what is written, with $1 for the first group of Regex. Default "$1".
	Replacement string `yaml:"replacement"`
	// Action is replace, keep, drop, keepequal, dropequal, hashmod, labelmap, labeldrop, labelkeep, lowercase or uppercase. Default replace.
	Action string `yaml:"action"`
}

// SetDefaults sets Prometheus' defaults.
func (c *RelabelConfig) SetDefaults() {
	d := &relabel.DefaultRelabelConfig
	*c = RelabelConfig{Separator: d.Separator, Regex: d.Regex.String(), Replacement: d.Replacement, Action: string(d.Action)}
}

// Validate returns the first fault, as Prometheus says it.
func (c RelabelConfig) Validate() error {
	_, err := c.compile()
	return err
}

func (c RelabelConfig) compile() (*relabel.Config, error) {
	regex := relabel.DefaultRelabelConfig.Regex // the same pointer: relabel compares them
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

// Reasons for which valid samples are not published.
const (
	filteredByFilter = iota
	filteredByRelabel
	filteredNameless // relabelling took the metric's name
	filteredByFormat // the format has no place for them
	filterReasons
)

func filterReason(reason int) string {
	return [filterReasons]string{"filter", "relabel", "nameless", "format"}[reason]
}

// filtered counts by reason.
type filtered [filterReasons]counts

func (f *filtered) total() (all counts) {
	for _, c := range f {
		all.series += c.series
		all.samples += c.samples
		all.histograms += c.histograms
		all.exemplars += c.exemplars
	}
	return all
}

// rules choose and change series between validation and encoding.
type rules struct {
	keep, drop  []Selector
	relabel     []*relabel.Config
	keyLabels   []string // sorted; empty for all
	samplesOnly bool
}

// newRules returns nil when there is nothing to do. The configuration is valid.
func newRules(cfg Config) *rules {
	r := &rules{
		keep: cfg.Filter.Keep, drop: cfg.Filter.Drop, keyLabels: slices.Sorted(slices.Values(cfg.KeyLabels)),
		samplesOnly: findFormat(cfg.Format).samplesOnly,
	}
	for _, c := range cfg.RelabelConfigs {
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

// apply removes from the batch what is not published, changes labels and computes
// the keys anew where they are others. scratch is memory to work in.
func (r *rules) apply(b *batch, scratch []byte) (out filtered, _ []byte) {
	if r == nil {
		return out, scratch
	}
	var builder *promlabels.Builder
	if len(r.relabel) > 0 {
		builder = promlabels.NewBuilder(promlabels.EmptyLabels())
	}
	kept := b.series[:0]
	for _, s := range b.series {
		labels := of(b.labels, s.labels)
		if !r.wants(labels) {
			out[filteredByFilter].add(&s)
			continue
		}
		if builder != nil {
			var changed bool
			var why int
			if changed, why = r.change(b, &s, builder); why >= 0 {
				out[why].add(&s)
				continue
			}
			if labels = of(b.labels, s.labels); changed {
				s.key, scratch = key(labels, scratch)
			}
		}
		if len(r.keyLabels) > 0 {
			s.key, scratch = keyOf(labels, r.keyLabels, scratch)
		}
		if r.samplesOnly && s.histograms.len()+s.exemplars.len() > 0 {
			out[filteredByFormat].histograms += s.histograms.len()
			out[filteredByFormat].exemplars += s.exemplars.len()
			s.histograms, s.exemplars, s.raw = extent{}, extent{}, span{}
		}
		kept = append(kept, s)
	}
	b.series = kept
	return out, scratch
}

func (r *rules) wants(labels []label) bool {
	matches := func(s Selector) bool { return s.matches(labels) }
	if len(r.keep) > 0 && !slices.ContainsFunc(r.keep, matches) {
		return false
	}
	return len(r.drop) == 0 || !slices.ContainsFunc(r.drop, matches)
}

// change relabels a series. why is the reason for which it is left out, or -1.
func (r *rules) change(b *batch, s *series, builder *promlabels.Builder) (changed bool, why int) {
	builder.Reset(promlabels.EmptyLabels())
	old := of(b.labels, s.labels)
	for _, l := range old {
		builder.Set(l.name, l.value)
	}
	if !relabel.ProcessBuilder(builder, r.relabel...) {
		return false, filteredByRelabel
	}
	fresh := mark(b.labels)
	named, sorted := false, true
	builder.Range(func(l promlabels.Label) {
		named = named || l.Name == nameLabel
		sorted = sorted && (len(b.labels) == int(fresh.from) || b.labels[len(b.labels)-1].name < l.Name)
		b.labels = append(b.labels, label{l.Name, l.Value})
	})
	fresh = upTo(fresh, b.labels)
	labels := of(b.labels, fresh)
	switch {
	case len(labels) == 0:
		return false, filteredByRelabel
	case !named:
		return false, filteredNameless
	}
	if !sorted {
		slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	}
	if slices.Equal(labels, of(b.labels, s.labels)) {
		clear(labels)
		b.labels = b.labels[:fresh.from]
		return false, -1
	}
	s.labels, s.refs, s.raw = fresh, extent{}, span{}
	return true, -1
}

// keyOf is the key of those labels alone that are named; both lists are sorted.
func keyOf(labels []label, names []string, scratch []byte) (uint64, []byte) {
	var chosen [16]label
	part := chosen[:0]
	for i := range labels {
		for len(names) > 0 && names[0] < labels[i].name {
			names = names[1:]
		}
		if len(names) > 0 && names[0] == labels[i].name {
			part = append(part, labels[i])
		}
	}
	return key(part, scratch)
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
		s.matchers = append(s.matchers, promlabels.MustNewMatcher(promlabels.MatchEqual, nameLabel, name))
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

func (s Selector) matches(labels []label) bool {
	for _, m := range s.matchers {
		value := "" // of a label that is not there, as in PromQL
		for i := range labels {
			if labels[i].name == m.Name {
				value = labels[i].value
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
	return fmt.Errorf("must be a PromQL selector such as up{job=~\"api|web\"}: expected %s at %q", wanted, door.Cut(p.rest, 32))
}

func (p *selectorParser) take(token string) bool {
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = strings.TrimLeft(rest, " \t\n")
	}
	return ok
}

// word reads a name, where colons are for metrics.
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
			return promlabels.NewMatcher(promlabels.MatchEqual, nameLabel, name)
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
			if err != nil { // of the regular expression alone, in two sentences of Go's
				return nil, fmt.Errorf("must be a PromQL selector such as up{job=~\"api|web\"}: the regular expression %q of %s: %w",
					door.Cut(value, 32), door.Cut(name, 32), err)
			}
			return m, nil
		}
	}
	return nil, p.fail("=, !=, =~ or !~")
}

// quotedPrefix returns the quoted text at the beginning of s.
func quotedPrefix(s string) (string, error) {
	if strings.HasPrefix(s, "'") { // PromQL has it, Go has not
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
