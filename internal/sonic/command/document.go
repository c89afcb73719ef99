package command

import (
	"fmt"
	"slices"
	"strings"
)

// Document returns the table of all commands for docs/sonic-commands.md, in Markdown: by group, one
// line for commands that are treated alike.
func (t *Table) Document() string {
	var out strings.Builder
	out.WriteString("| group | what Sonic does | commands |\n|---|---|---|\n")
	groups := map[string][]*Command{}
	for _, c := range t.all {
		if c.Class != Container {
			groups[c.Group] = append(groups[c.Group], c)
		}
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, group := range names {
		treated := map[string][]string{}
		var order []string
		for class := range Classes {
			for _, c := range groups[group] {
				if c.Class != class {
					continue
				}
				how := c.treatment()
				if treated[how] == nil {
					order = append(order, how)
				}
				treated[how] = append(treated[how], "`"+strings.ToUpper(strings.ReplaceAll(c.Name, "|", " "))+"`")
			}
		}
		for _, how := range order {
			fmt.Fprintf(&out, "| %s | %s | %s |\n", group, how, strings.Join(treated[how], ", "))
		}
	}
	return out.String()
}

func (c *Command) treatment() string {
	switch c.Name {
	case "sort", "georadius", "georadiusbymember":
		return "replicated with `STORE`, else relayed"
	case "scan", "keys", "dbsize", "randomkey":
		return "relayed; keys of Sonic itself are left out"
	case "flushall", "flushdb":
		return "refused; with `flush: zone` this zone's keys are deleted, with `flush: replicate` those of all zones"
	case "function|load", "function|delete":
		return "relayed, changes this zone only: load libraries in each zone"
	case "function|flush":
		return "changes this zone only; the library of Sonic itself stays"
	case "function|list":
		return "relayed; the library of Sonic itself is left out"
	case "info":
		return "relayed; its numbers of connected and blocked clients are those of this Sonic"
	}
	switch c.Class {
	case Read:
		return "relayed"
	case Write:
		return "replicated"
	case Blocking:
		return "replicated; Sonic waits in place of Redis"
	case Local:
		return "relayed, changes this zone only"
	case Script:
		return "replicated: the state of the keys that it declares"
	case Publish:
		if c.Name == "publish" {
			return "relayed to subscribers of this zone; of all zones with `publish: replicate`"
		}
		return "relayed to subscribers of this zone"
	case Transaction:
		return "a transaction, replicated as one"
	case Connection:
		return "relayed on a connection of the client's own"
	case Answered:
		return "answered by Sonic"
	case Refused:
		return "refused: " + c.Reason
	default:
		return ""
	}
}
