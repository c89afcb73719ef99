package nightingale

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/door"
)

// template is a topic's name with placeholders.
type template struct {
	parts     []templatePart
	tenant    bool // whether the tenant is in it
	chosen    bool // whether what senders choose is in its last part
	perSeries bool // whether it differs between the series of a request
}

// templatePart is a literal text, or one of the placeholders.
type templatePart struct {
	text  string // of a literal
	label string // whose value stands here
	kind  partKind
}

type partKind uint8

const (
	literal partKind = iota
	tenantPart
	labelPart
)

// parseTemplate reads the configuration's topic.
func parseTemplate(text string) (template, error) {
	var t template
	shape := ""
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if before != "" {
			t.parts = append(t.parts, templatePart{text: before})
			shape += before
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		label, isLabel := strings.CutPrefix(name, "label.")
		switch {
		case !closed:
			return t, fmt.Errorf("must close the brace after %q, got %q", before, text)
		case name == "tenant":
			t.parts = append(t.parts, templatePart{kind: tenantPart})
			t.tenant = true
		case name == "name":
			t.parts = append(t.parts, templatePart{kind: labelPart, label: nameLabel})
			t.perSeries = true
		case isLabel && label != "":
			t.parts = append(t.parts, templatePart{kind: labelPart, label: label})
			t.perSeries = true
		default:
			return t, fmt.Errorf("knows {tenant}, {name} and {label.NAME}, got {%s}", name)
		}
		shape += "x"
		rest = after
	}
	t.chosen = strings.Contains(text[strings.LastIndexByte(text, '/')+1:], "{")
	if t.tenant && ambiguous(text) {
		return t, fmt.Errorf("must not have {tenant} and another placeholder in one part of the name: values of two tenants could give the same topic, got %q", text)
	}
	if t.tenant && namesPartitions(text) {
		return t, fmt.Errorf("must not have {tenant} at the end of a name behind %q, a part of it, or numbers of it: "+
			"the topic of tenant 3 would be a partition of another one, got %q", partitionInfix, text)
	}
	if !regexp.MustCompile(`^(non-)?persistent://[^/]+/[^/]+/[^/]+$`).MatchString(shape) {
		return t, fmt.Errorf("must be persistent://tenant/namespace/name, got %q", text)
	}
	return t, nil
}

// ambiguous reports whether the tenant shares a part of the name with another
// placeholder: what separates them may stand in their values, too.
func ambiguous(text string) bool {
	for part := range strings.SplitSeq(text, "/") {
		if strings.Contains(part, "{tenant}") && strings.Count(part, "{") > 1 {
			return true
		}
	}
	return false
}

// partitionInfix stands before the number in the name of a topic's partition.
const partitionInfix = "-partition-"

// namesPartitions reports whether a topic could be a partition of another one by the
// tenant that its name ends with: behind partitionInfix or its beginning, which the
// tenant goes on with. The dash alone is no danger: checkTopicTenant refuses tenants
// that have the rest.
func namesPartitions(text string) bool {
	before, ok := strings.CutSuffix(text, "{tenant}")
	if !ok {
		return false
	}
	if strings.HasSuffix(strings.TrimRight(before, "0123456789"), partitionInfix) {
		return true
	}
	for n := 2; n < len(partitionInfix); n++ {
		if strings.HasSuffix(before, partitionInfix[:n]) {
			return true
		}
	}
	return false
}

// static reports whether there are no placeholders.
func (t *template) static() bool { return !t.tenant && !t.perSeries }

// render appends the topic of a series.
func (t *template) render(dst []byte, tenant string, labels []label) []byte {
	from := len(dst)
	for _, p := range t.parts {
		switch p.kind {
		case literal:
			dst = append(dst, p.text...)
		case tenantPart:
			dst = append(dst, tenant...) // checkTopicTenant has seen it
		case labelPart:
			value := ""
			for i := range labels {
				if labels[i].name == p.label {
					value = labels[i].value
					break
				}
			}
			dst = appendSanitised(dst, value)
		}
	}
	return t.harmless(dst, from)
}

const (
	maxTopicPart = 64
	noValue      = "none" // stands for a label that a series has not
)

// appendSanitised writes a value as a part of a topic's name: letters, digits, "_",
// "-" and "." stay, any other byte becomes "_". A long value is cut and ends with
// its hash, so that values which begin alike stay apart.
func appendSanitised(dst []byte, value string) []byte {
	if value == "" {
		return append(dst, noValue...)
	}
	short := value
	if len(value) > maxTopicPart {
		short = value[:maxTopicPart-17]
	}
	for i := range len(short) {
		c := short[i]
		if !topicByte(c) {
			c = '_'
		}
		dst = append(dst, c)
	}
	if len(short) < len(value) {
		dst = appendKey(append(dst, '-'), xxhash.Sum64String(value))
	}
	return dst
}

func topicByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// harmless changes names that mean something else to Pulsar, which a sender could
// choose: system topics begin with "__", and "-partition-3" names a partition of
// another topic. Parts of dots alone would be a path's. What stands in the
// configuration alone is an operator's choice, and stays.
func (t *template) harmless(topic []byte, from int) []byte {
	for i, parts := from, 0; i < len(topic); i++ {
		if topic[i] != '/' {
			continue
		}
		if parts++; parts < 2 {
			continue // the slashes of the scheme
		}
		end := i + 1
		for end < len(topic) && topic[end] == '.' {
			end++
		}
		if end > i+1 && (end == len(topic) || topic[end] == '/') {
			for j := i + 1; j < end; j++ {
				topic[j] = '_'
			}
		}
	}
	if !t.chosen {
		return topic
	}
	slash := len(topic) - 1
	for slash > from && topic[slash] != '/' {
		slash--
	}
	name := topic[slash+1:]
	if len(name) > 1 && name[0] == '_' && name[1] == '_' {
		name[0] = 'x'
	}
	digits := len(name)
	for digits > 0 && name[digits-1] >= '0' && name[digits-1] <= '9' {
		digits--
	}
	if digits < len(name) && strings.HasSuffix(string(name[:digits]), partitionInfix) {
		topic = append(topic, '_')
	}
	return topic
}

// checkTopicTenant refuses tenants that cannot stand in a topic's name as they are:
// changing them, as harmless and sanitising do, could give one tenant the topics of
// another.
func checkTopicTenant(tenant string) error {
	good := tenant != "" && len(tenant) <= maxTopicPart && strings.Trim(tenant, ".") != "" && !strings.HasPrefix(tenant, "__") &&
		!strings.HasSuffix(strings.TrimRight(tenant, "0123456789"), "partition-")
	for i := range len(tenant) {
		good = good && topicByte(tenant[i])
	}
	if !good {
		return door.Invalid("tenant", "X-Scope-OrgID must be 1 to %d letters, digits, '_', '-' or '.', got %q", maxTopicPart, door.Cut(tenant, maxTopicPart))
	}
	return nil
}
