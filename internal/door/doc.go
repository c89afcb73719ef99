// Package door is what the HTTP servers for senders have in common: bounds of memory, connections and time that hold before a sender is known, refusals
// and their answers, bearer tokens, quotas.
package door
