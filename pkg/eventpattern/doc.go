// Package eventpattern decides which rules match a JSON event, in the event pattern language of Amazon
// EventBridge.
//
// [Parse] reads one pattern. For an invalid pattern it returns an error with the position. [Index]
// holds the patterns of many rules. Its Match reads an event once and skips fields that no rule
// names. Once its [Scratch] has grown to the size of the events and of the index, Match allocates
// only for one case: a rule has {"cidr": ...}, and the text looks like an address but is not valid.
//
// # The language
//
// A pattern is a JSON object. Its leaves are lists of alternatives, at least one of which must
// hold. All fields of an object must hold. Matching ignores fields of the event that the pattern
// does not name. An alternative is a string, a number, true, false or null, or an object with one
// operator:
//
//	"running"                                     the same string, number or literal
//	{"prefix": "a"}  {"suffix": "z"}              strings that begin or end so
//	{"prefix": {"equals-ignore-case": "a"}}       the same without regard to case; so for "suffix"
//	{"equals-ignore-case": "a"}                   the same string without regard to case
//	{"wildcard": "a*z"}                           strings; * stands for any characters or none, \* for a star and \\ for a backslash
//	{"anything-but": …}                           values that do not match: a string, a number, a list of either, or an object with
//	                                              prefix, suffix, equals-ignore-case or wildcard of a string or a list of strings
//	{"numeric": [">", 0, "<=", 5]}                numbers; one of =, <, <=, >, >= or a lower and an upper bound
//	{"cidr": "10.0.0.0/8"}                        strings that are addresses of that network, IPv4 or IPv6
//	{"exists": true}  {"exists": false}           a value is there, or is not
//
// "$or" instead of a field's name takes a list of two or more objects. At least one of them must
// hold, together with the other fields of the object that contains "$or".
//
// # Meaning
//
// Escapes in texts and keys are decoded before the comparison. A key is one step of a path: a dot
// in a key has no meaning. Operators that ignore case compare rune by rune, as [strings.EqualFold]
// does. Numbers are compared by value, with any size and precision: 300, 300.0 and 3.0e2 are the
// same. A number and a string are never the same. Anything-but accepts values of other types:
// {"anything-but": "a"} accepts 1, and null.
//
// Where the event has an array, the pattern is compared with each element, as if this element were
// there instead of the array. Nested arrays count as one array. Fields whose paths lead through the
// same array must match in the same element. An empty array or object contains no value. {"exists":
// false} requires that the element that the other fields match, or otherwise the whole event, has
// no value there. A value is a string, a number or a literal, including null.
//
// An address ::ffff:a.b.c.d is the IPv4 address a.b.c.d. A text with a zone, such as fe80::1%eth0, is
// not an address.
//
// # Bounds
//
// The constants of this package bound patterns and events. A pattern or event that exceeds them
// gets an [Error] or an [EventError]. The memory of a match is proportional to the size of the
// event and of the rules. So is its time, unless many values of one event each have to be compared
// with many rules: then it is proportional to values times rules, some 5 ns for each pair, up to
// MaxEventWork.
package eventpattern
