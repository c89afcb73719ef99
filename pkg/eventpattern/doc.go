// Package eventpattern finds the rules that match a JSON event. The patterns of the rules have the
// language of Amazon EventBridge; docs/patterns.md describes it, with all bounds and differences.
//
// [Parse] reads one pattern; its error has the position of the mistake. [Index] holds the patterns
// of many rules and matches events with all of them. [Pattern.Explain] says why an event does not
// match. Of this repository the package imports pkg/jsontext only.
package eventpattern
