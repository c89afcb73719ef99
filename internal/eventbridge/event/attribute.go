package event

import (
	"bytes"
	"math"
	"mime"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// These are the attributes that Eventbridge looks at, in the order in which it writes them.
const (
	specVersion = iota
	idName
	sourceName
	typeName
	subjectName
	timeName
	contentTypeName
	schemaName
	partitionKeyName
	traceParentName
	traceStateName
	knownNames
)

//nolint:gochecknoglobals // a table
var attributeNames = [knownNames]string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema",
	"partitionkey", "traceparent", "tracestate"}

// known returns the number of an attribute that Eventbridge looks at, -1 for others.
func known(name []byte) int {
	for i, other := range &attributeNames {
		if string(name) == other {
			return i
		}
	}
	return -1
}

// text returns where the text of an attribute belongs, nil if it has no field of its own.
func (e *Event) text(which int) *string {
	switch which {
	case idName:
		return &e.ID
	case sourceName:
		return &e.Source
	case typeName:
		return &e.Type
	case subjectName:
		return &e.Subject
	case partitionKeyName:
		return &e.PartitionKey
	case contentTypeName:
		return &e.DataContentType
	}
	return nil
}

// check checks an attribute. which is the result of known(a.name). If the attribute is time, when is
// its value.
func (a attribute) check(which, at int) (when time.Time, fault *Error) {
	if which < 0 {
		if fault := checkName(a.name, at); fault != nil {
			return when, fault
		}
	}
	switch {
	case a.text != nil:
		if fault = checkText(a.name, a.text, at); fault == nil && which >= 0 {
			when, fault = checkKnown(which, a.text, at)
		}
	case which >= 0:
		fault = faultf(BadAttribute, at, "%s: must be a text", a.name)
	default:
		fault = checkValue(a.name, a.raw, at)
	}
	return when, fault
}

// checkName checks the name of an attribute (CloudEvents 1.0.2, Naming conventions).
func checkName(name []byte, at int) *Error {
	if len(name) == 0 || len(name) > MaxNameBytes {
		return faultf(BadAttribute, at, "the name %s of an attribute must have 1 to %d characters", shown(name), MaxNameBytes)
	}
	for _, c := range name {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9') {
			return faultf(BadAttribute, at, "the name %s of an attribute must consist of a-z and 0-9", shown(name))
		}
	}
	return nil
}

// checkText checks the type String (CloudEvents 1.0.2, Type system): no control characters and no
// noncharacters. text is UTF-8.
func checkText(name, text []byte, at int) *Error {
	if len(text) > MaxTextBytes {
		return tooLong(name, at)
	}
	for i := 0; i < len(text); {
		if c := text[i]; c >= ' ' && c < 0x7f {
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return faultf(BadAttribute, at, "%s: the character %U is not allowed in attributes", name, r)
		}
		i += n
	}
	return nil
}

func tooLong(name []byte, at int) *Error {
	return faultf(BadAttribute, at, "%s: must have at most %d bytes", name, MaxTextBytes)
}

// checkValue checks the value of an extension that is not a text: a boolean, or an integer of 32
// bits.
func checkValue(name, raw []byte, at int) *Error {
	switch c := raw[0]; {
	case c == 't', c == 'f':
		return nil
	case c == '-' || c-'0' < 10:
		if n, err := strconv.ParseInt(string(raw), 10, 64); err != nil || n < math.MinInt32 || n > math.MaxInt32 {
			return faultf(BadAttribute, at, "%s: a number must be an integer from -2147483648 to 2147483647, got %s", name, shown(raw))
		}
		return nil
	}
	return faultf(BadAttribute, at, "%s: must be a text, a boolean or an integer", name)
}

// checkKnown checks the text of an attribute that Eventbridge looks at.
func checkKnown(which int, text []byte, at int) (when time.Time, fault *Error) {
	wanted := ""
	switch which {
	case specVersion:
		if string(text) != "1.0" {
			wanted = "1.0"
		}
	case sourceName:
		if !isURIReference(text) {
			wanted = "a URI-reference (RFC 3986)"
		}
	case schemaName:
		if !isURI(text) {
			wanted = "an absolute URI (RFC 3986)"
		}
	case contentTypeName:
		if !isMediaType(string(text)) {
			wanted = "a media type such as application/json"
		}
	case timeName:
		var err error
		if when, err = parseTime(text); err != nil {
			wanted = "a time by RFC 3339 such as 2026-11-22T17:00:00Z"
		}
	}
	switch {
	case len(text) == 0:
		fault = faultf(BadAttribute, at, "%s: must not be empty", attributeNames[which])
	case wanted != "":
		fault = faultf(BadAttribute, at, "%s: must be %s, got %s", attributeNames[which], wanted, shown(text))
	}
	return when, fault
}

// parseTime parses RFC 3339, which allows t and z as well as T and Z.
func parseTime(text []byte) (t time.Time, err error) {
	if bytes.ContainsAny(text, "tz") {
		text = bytes.ToUpper(text)
	}
	err = t.UnmarshalText(text)
	return t, err
}

// isURIReference checks the characters of RFC 3986, and that each % begins an escape.
func isURIReference(text []byte) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '%':
			if i+2 >= len(text) || jsontext.HexValue(text[i+1]) < 0 || jsontext.HexValue(text[i+2]) < 0 {
				return false
			}
			i += 2
		case strings.IndexByte("-._~:/?#[]@!$&'()*+,;=", c) < 0:
			return false
		}
	}
	return len(text) > 0
}

// isURI is isURIReference with a scheme.
func isURI(text []byte) bool { return scheme.Match(text) && isURIReference(text) }

var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)

// isMediaType checks type/subtype (RFC 2046). It leaves parameters to the reader of the data.
func isMediaType(text string) bool {
	media, _, _ := strings.Cut(text, ";")
	if media == jsonMediaType {
		return true
	}
	media, _, err := mime.ParseMediaType(media)
	return err == nil && strings.Contains(media, "/")
}

// isJSON reports whether a datacontenttype says that data is JSON (CloudEvents JSON format 1.0.2,
// section 3.1.1): */json, */*+json, or empty.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == jsonMediaType {
		return true
	}
	media, _, _ := strings.Cut(contentType, ";")
	_, subtype, _ := strings.Cut(strings.ToLower(strings.TrimSpace(media)), "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}
