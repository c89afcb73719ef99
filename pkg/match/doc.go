// Package match decides which rules match a JSON event, in the event pattern language of Amazon EventBridge.
//
// [Parse] reads one pattern and refuses every invalid one, with its position. [Index] holds the patterns of many rules. Its Match reads an event once,
// skips what no rule names, and allocates nothing once its [Scratch] has grown to the size of the events and of the index.
//
// # The language
//
// A pattern is a JSON object. Its leaves are lists of alternatives, of which one has to hold; all fields of an object have to hold. A field of the event
// that the pattern does not name plays no part. An alternative is a string, a number, true, false or null, or an object with one operator:
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
// "$or" in the place of a field's name takes a list of two or more objects, one of which has to hold together with the fields beside it.
//
// # Meaning
//
// Texts are compared after escapes are decoded, in keys too. A key is one step of a path: a dot in a key has no meaning. Case is ignored rune by rune, as
// [strings.EqualFold] does. Numbers are compared by value, of any size and precision: 300, 300.0 and 3.0e2 are the same. A number and a string are never
// the same. Anything-but accepts values of other types: {"anything-but": "a"} accepts 1, and null.
//
// Where the event has an array, the pattern is held against its elements, as if the element stood in the array's place. Arrays in arrays are one array.
// Fields that lead through the same array have to match in the same element. An empty array or object holds no value. {"exists": false} demands that the
// element that the other fields match, or else the whole event, has no value there; a value is a string, number or literal, null among them.
//
// An address ::ffff:a.b.c.d is the IPv4 address a.b.c.d. Addresses with a zone are no addresses.
//
// # Bounds
//
// The constants of this package bound patterns and events. What exceeds them is refused with an [Error] or an [EventError]. The memory of a match is
// proportional to the event and to the rules. Its time is, too, unless many values of one event meet many rules each: then it is proportional to values
// times rules, some 5 ns for each pair, up to MaxEventWork.
package match
