package config

import (
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/pkg/secret"
)

const redacted = "<redacted>"

func redactNode(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		n.Value = redact(n.Value)
	}
	for _, child := range n.Content {
		redactNode(child)
	}
}

// redact hides the passwords of the URLs in a text, and the values in their queries and fragments,
// each of which may be secret. A key that holds a secret should be a secret.String; redact is for
// secrets that people put elsewhere.
func redact(text string) string {
	scheme := regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://`)
	var out strings.Builder
	for {
		found := scheme.FindStringIndex(text)
		if found == nil {
			return out.String() + text
		}
		begin, end := found[0], found[1]
		quoted, whole := begin > 0 && text[begin-1] == '"', begin == 0 && out.Len() == 0
		out.WriteString(text[:end])
		url, rest := cutURL(text[end:], scheme)
		if cut := passwordEnd(url, rest, quoted, whole); cut > 0 {
			all := url + rest
			user, _, _ := strings.Cut(all, ":")
			out.WriteString(user + ":" + redacted)
			url, rest = cutURL(all[cut:], scheme)
		}
		out.WriteString(redactQuery(url))
		text = rest
	}
}

// redactBare hides the passwords of URLs without a scheme, user:password@host, where a fault quotes
// a given value.
func redactBare(text string) string {
	return regexp.MustCompile(`"([^"\s:@/]*):[^"/][^"]*@`).ReplaceAllString(text, `"$1:`+redacted+`@`)
}

// cutURL cuts a text after the URL at its beginning: at white space, or at a comma before another
// URL.
func cutURL(text string, scheme *regexp.Regexp) (url, rest string) {
	end := len(text)
	if space := strings.IndexAny(text, " \t\r\n"); space >= 0 {
		end = space
	}
	for _, next := range scheme.FindAllStringIndex(text[:end], -1) {
		if next[0] > 0 && text[next[0]-1] == ',' {
			end = next[0]
			break
		}
	}
	return text[:end], text[end:]
}

// passwordEnd returns the index of the "@" after the password of a URL, or 0 if there is no
// password. A password may hold characters that it should not. Then the last "@" counts, with white
// space before it only if it is clear where the URL ends.
func passwordEnd(url, rest string, quoted, whole bool) int {
	authority := url
	if end := strings.IndexAny(url, "/?#"); end >= 0 {
		authority = url[:end]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		if user, password, ok := strings.Cut(authority[:at], ":"); ok && password != "" && len(user) < at {
			return at
		}
		return 0
	}
	host, port, ok := strings.Cut(authority, ":")
	if !ok || strings.HasPrefix(host, "[") || regexp.MustCompile(`^\d*"?(,.*)?$`).MatchString(port) {
		return 0
	}
	scope := url
	switch {
	case whole:
		scope = url + rest
	case quoted:
		scope = url + rest
		if quote := strings.IndexByte(scope, '"'); quote >= 0 {
			scope = scope[:quote]
		}
	}
	return max(strings.LastIndexByte(scope, '@'), 0)
}

// redactQuery hides the values of a URL's query and fragment.
func redactQuery(url string) string {
	begin := strings.IndexAny(url, "?#")
	if begin < 0 {
		return url
	}
	url, tail := url[:begin+1], url[begin+1:]
	closing := tail[len(strings.TrimRight(tail, `"'`)):]
	pairs := strings.FieldsFunc(strings.TrimSuffix(tail, closing), func(r rune) bool { return r == '&' || r == '#' })
	for i, pair := range pairs {
		name, _, ok := strings.Cut(pair, "=")
		if pairs[i] = redacted; ok {
			pairs[i] = name + "=" + redacted
		}
	}
	return url + strings.Join(pairs, "&") + closing
}

// holdsSecret reports whether t is a secret or may hold one: a fault must not repeat what was
// written for it. It returns true for an unknown type, nil.
func holdsSecret(t reflect.Type) bool {
	switch {
	case t == nil || t == reflect.TypeFor[secret.String]():
		return true
	case decodesItself(t):
		return false
	}
	for _, kind := range kindsOf(t) {
		if holdsSecret(reflect.TypeOf(kind)) {
			return true
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holdsSecret(t.Elem())
	case reflect.Struct:
		for _, k := range keysOf(t) {
			if holdsSecret(t.FieldByIndex(k.index).Type) {
				return true
			}
		}
	}
	return false
}

// below returns the type of the value under a key of t, or of its elements for the empty key; nil
// if that is not known.
func below(t reflect.Type, name string) reflect.Type {
	if t == nil {
		return nil
	}
	t = indirect(t)
	switch {
	case name == "<<" || decodesItself(t):
		return t
	case kindsOf(t) != nil:
		return reflect.TypeOf(kindsOf(t)[name])
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
		return t.Elem()
	case t.Kind() == reflect.Struct:
		for _, k := range keysOf(t) {
			if k.name == name {
				return t.FieldByIndex(k.index).Type
			}
		}
	}
	return nil
}
