// Package command describes every command of Redis 7.0: its arity, the positions of its keys, and
// what Sonic does with it. The package may import resp.
package command

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed commands.txt
var commands string

// Class is what Sonic does with a command.
type Class uint8

const (
	// Read is relayed to Redis unchanged.
	Read Class = iota
	// Write runs as a function of the library, which records its effect.
	Write
	// Blocking is a write that may block until a key has an element.
	Blocking
	// Local changes this zone only, and is relayed unchanged.
	Local
	// Script runs a user's script or function; the keys that it declares are replicated.
	Script
	// Publish sends a message to subscribers.
	Publish
	// Transaction is MULTI, EXEC, DISCARD, WATCH or UNWATCH.
	Transaction
	// Connection needs a connection to Redis that no other client uses.
	Connection
	// Answered is answered by Sonic without Redis.
	Answered
	// Container is only the first word of subcommands.
	Container
	// Refused is refused: it would break replication, or is not for clients.
	Refused
	// Classes is the number of classes.
	Classes
)

func classNames() [Classes]string {
	return [...]string{
		"read", "write", "blocking", "local", "script", "publish", "transaction", "connection", "answered", "container", "refused",
	}
}

// String returns the name that the table and the metrics use.
func (c Class) String() string {
	if c >= Classes {
		return "Class(" + strconv.Itoa(int(c)) + ")"
	}
	return classNames()[c]
}

// Command is a command or a subcommand.
type Command struct {
	// Name in lower case, "client|list" for a subcommand.
	Name string
	// Index among all commands of the table, from 0.
	Index int
	// Arity is the number of arguments including the name; -n: at least n.
	Arity int
	// Flags as COMMAND gives them, sorted.
	Flags []string
	// Group as COMMAND DOCS gives it.
	Group string
	Class Class
	// Reason is why a command of class Refused is refused.
	Reason string

	// NoAuth says that a client may run it before it has logged in.
	NoAuth bool
	// NoMulti says that it is refused within MULTI.
	NoMulti bool
	// Changes says that read-only users may not run it.
	Changes bool

	// KeySpecs are the key specifications of COMMAND in the form of commands.txt.
	KeySpecs string

	keys []keySpec
	subs map[string]*Command
}

// Takes reports whether the command may have that many arguments, including its name.
func (c *Command) Takes(arguments int) bool {
	if c.Arity >= 0 {
		return arguments == c.Arity
	}
	return arguments >= -c.Arity
}

// HasSubcommands reports whether its second argument is a subcommand.
func (c *Command) HasSubcommands() bool { return c.subs != nil }

// Table holds all commands. It is safe for concurrent use.
type Table struct {
	all    []*Command
	byName map[string]*Command
}

// NewTable returns the table of Redis 7.0.
func NewTable() (*Table, error) {
	t := &Table{byName: make(map[string]*Command)}
	for number, text := range strings.Split(commands, "\n") {
		if text == "" || text[0] == '#' {
			continue
		}
		if err := t.add(text); err != nil {
			return nil, fmt.Errorf("commands.txt:%d: %w", number+1, err)
		}
	}
	return t, nil
}

// All returns the commands in order of name. Callers must not change them.
func (t *Table) All() []*Command { return t.all }

// Refuse makes a command one that is refused, for reason.
func (t *Table) Refuse(name, reason string) {
	c := t.byName[name]
	c.Class, c.Reason = Refused, reason
}

// longestName is the maximum length of a name: longer ones are unknown.
const longestName = 24

// Lookup returns the command of that name, in upper or lower case; nil if it is unknown. sub is the
// second argument. It selects the subcommand of a command that has some; nil selects the container
// itself.
func (t *Table) Lookup(name, sub []byte) *Command {
	var buf [longestName]byte
	c := t.byName[string(lower(&buf, name))]
	if c == nil || c.subs == nil || sub == nil {
		return c
	}
	return c.subs[string(lower(&buf, sub))]
}

// lower returns name in lower case within buf, or nothing when it is too long.
func lower(buf *[longestName]byte, name []byte) []byte {
	if len(name) > len(buf) {
		return nil
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		buf[i] = c
	}
	return buf[:len(name)]
}

func (t *Table) add(text string) error {
	fields := strings.Split(text, "\t")
	if len(fields) != 6 && len(fields) != 7 {
		return fmt.Errorf("%d fields", len(fields))
	}
	arity, err := strconv.Atoi(fields[1])
	if err != nil {
		return err
	}
	class, err := parseClass(fields[5])
	if err != nil {
		return err
	}
	c := &Command{Name: fields[0], Index: len(t.all), Arity: arity, Group: fields[4], Class: class}
	if fields[2] != "-" {
		c.Flags = strings.Split(fields[2], ",")
	}
	if len(fields) == 7 {
		c.Reason = fields[6]
	}
	if (c.Class == Refused) != (c.Reason != "") {
		return fmt.Errorf("%s: a reason belongs to what is refused, and only there", c.Name)
	}
	for _, flag := range c.Flags {
		c.NoAuth = c.NoAuth || flag == "no_auth"
		c.NoMulti = c.NoMulti || flag == "no_multi"
		c.Changes = c.Changes || flag == "write"
	}
	switch c.Class {
	case Write, Blocking, Local, Script, Publish:
		c.Changes = true
	default:
	}
	if fields[3] != "-" {
		c.KeySpecs = fields[3]
	}
	if c.keys, err = parseKeySpecs(fields[3]); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	t.all = append(t.all, c)
	parent, sub, isSub := strings.Cut(c.Name, "|")
	if !isSub {
		t.byName[c.Name] = c
		return nil
	}
	container := t.byName[parent]
	if container == nil {
		return fmt.Errorf("%s comes before %s", c.Name, parent)
	}
	if container.subs == nil {
		container.subs = make(map[string]*Command)
	}
	container.subs[sub] = c
	return nil
}

func parseClass(name string) (Class, error) {
	for class, known := range classNames() {
		if name == known {
			return Class(class), nil
		}
	}
	return 0, fmt.Errorf("unknown class %q", name)
}
