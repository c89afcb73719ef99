package event

import (
	"bytes"
	"math"
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

func nameOf(known int) string {
	return [knownNames]string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema",
		"partitionkey", "traceparent", "tracestate"}[known]
}

// known returns the number of an attribute that Eventbridge looks at, -1 for others.
func known(name []byte) int {
	switch string(name) {
	case "specversion":
		return specVersion
	case "id":
		return idName
	case "source":
		return sourceName
	case "type":
		return typeName
	case "subject":
		return subjectName
	case "time":
		return timeName
	case "datacontenttype":
		return contentTypeName
	case "dataschema":
		return schemaName
	case "partitionkey":
		return partitionKeyName
	case "traceparent":
		return traceParentName
	case "tracestate":
		return traceStateName
	}
	return -1
}

// attribute is a name and its value as JSON.
type attribute struct {
	name, raw []byte
	escaped   bool // raw is a text with escapes
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
		return faultf(BadAttribute, at, "%s: must have at most %d bytes, got %d", name, MaxTextBytes, len(text))
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

// checkValue checks an extension's value: a text, a boolean, or an integer of 32 bits.
func checkValue(name, raw []byte, at int) *Error {
	switch c := raw[0]; {
	case c == 't', c == 'f', c == '"':
		return nil
	case c == '-' || c-'0' < 10:
		if n, err := strconv.ParseInt(string(raw), 10, 64); err != nil || n < math.MinInt32 || n > math.MaxInt32 {
			return faultf(BadAttribute, at, "%s: a number must be an integer from -2147483648 to 2147483647, got %s", name, shown(raw))
		}
		return nil
	}
	return faultf(BadAttribute, at, "%s: must be a text, a boolean or an integer", name)
}

// checkAttribute checks the text of an attribute. which is the result of known(name). If the
// attribute is time, when is its value.
func checkAttribute(which int, name, text []byte, at int) (when time.Time, fault *Error) {
	if fault := checkText(name, text, at); fault != nil {
		return when, fault
	}
	if which < 0 {
		return when, nil
	}
	if fault := checkKnown(which, text, at); fault != nil {
		return when, fault
	}
	if which == timeName {
		var err error
		if when, err = parseTime(text); err != nil {
			return when, faultf(BadAttribute, at, "time: must be a time by RFC 3339 such as 2026-11-22T17:00:00Z, got %s", shown(text))
		}
	}
	return when, nil
}

// checkKnown checks the text of an attribute that Eventbridge looks at, except for the form of
// time.
func checkKnown(which int, text []byte, at int) *Error {
	name := nameOf(which)
	if len(text) == 0 {
		return faultf(BadAttribute, at, "%s: must not be empty", name)
	}
	switch which {
	case specVersion:
		if string(text) != "1.0" {
			return faultf(BadAttribute, at, "specversion: must be 1.0, got %s", shown(text))
		}
	case sourceName:
		if !isURIReference(text) {
			return faultf(BadAttribute, at, "source: must be a URI-reference (RFC 3986), got %s", shown(text))
		}
	case schemaName:
		if !isURI(text) {
			return faultf(BadAttribute, at, "dataschema: must be an absolute URI (RFC 3986), got %s", shown(text))
		}
	case contentTypeName:
		if !isMediaType(text) {
			return faultf(BadAttribute, at, "datacontenttype: must be a media type such as application/json, got %s", shown(text))
		}
	}
	return nil
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
func isURI(text []byte) bool {
	scheme, _, found := bytes.Cut(text, []byte{':'})
	if !found || len(scheme) == 0 || !isLetter(scheme[0]) {
		return false
	}
	for _, c := range scheme {
		if !isLetter(c) && !('0' <= c && c <= '9') && c != '+' && c != '-' && c != '.' {
			return false
		}
	}
	return isURIReference(text)
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// isMediaType checks type/subtype (RFC 2046, RFC 7231 section 3.1.1.1). It leaves parameters to the
// reader of the data.
func isMediaType(text []byte) bool {
	media, _, _ := bytes.Cut(text, []byte{';'})
	kind, subtype, found := bytes.Cut(bytes.TrimSpace(media), []byte{'/'})
	return found && isToken(kind) && isToken(subtype)
}

func isToken(text []byte) bool {
	for _, c := range text {
		if !isLetter(c) && !('0' <= c && c <= '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return len(text) > 0
}

// isJSON reports whether a datacontenttype says that data is JSON (CloudEvents JSON format 1.0.2,
// section 3.1.1): */json, */*+json, or empty.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return true
	}
	media, _, _ := strings.Cut(contentType, ";")
	_, subtype, _ := strings.Cut(strings.ToLower(strings.TrimSpace(media)), "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}
