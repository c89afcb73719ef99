// Package publishing makes scripts and libraries of clients record the messages that they publish,
// so that subscribers of other zones get them, too. It puts a prefix before the text, on its first
// line of code. There `redis` becomes a table whose call and pcall add each PUBLISH that Redis has
// executed to a list. The function sonic_mark makes that list before the script, and sonic_ship
// reads and deletes it after the script. Without the list nothing is recorded. The package imports
// no other package of Sonic.
package publishing

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"regexp"
	"strings"
)

// The prefix is one line, between these comments.
const (
	begin = "--[[sonic: ]]"
	end   = "--[[:sonic]] "
)

// common defines call and pcall. A script that has selected another database notes in database 0.
// DEL makes Redis take the next write beyond its bound of memory, too.
//
// The error of a call names the line of its caller: Redis' handler of errors would set that of this
// prefix. For a tail call, `return redis.call(..)`, the caller's line is not known.
const common = `
local db
local run = function(...)
	local reply = redis.pcall(...)
	local name, a, b = ...
	name = type(name) == 'string' and string.lower(name)
	if (name == 'publish' or name == 'select') and not (type(reply) == 'table' and reply.err) then
		if name == 'select' then
			db = a
		else
			if db then redis.pcall('SELECT', 0) end
			redis.pcall('DEL', '{sonic:0}published-')
			redis.pcall('RPUSHX', '{sonic:0}published', a, b)
			if db then redis.pcall('SELECT', db) end
		end
	end
	return reply
end
local call = function(...)
	local reply = run(...)
	if type(reply) == 'table' and reply.err then
		local _, at = pcall(error, '', 3)
		local line = tonumber(string.match(at, ':(%d+): $'))
		if line then
			setmetatable(reply, {__newindex = function(t, k, v)
				if k == 'line' then v = line end
				rawset(t, k, v)
			end})
		end
		error(reply)
	end
	return reply
end
`

// A library that is being loaded sees only some fields of redis. It sees all once a function runs.
const (
	ofScript  = `return setmetatable({call = call, pcall = run}, {__index = redis})`
	ofLibrary = `
local all
local shadow = {
	call = call, pcall = run, log = redis.log,
	LOG_DEBUG = redis.LOG_DEBUG, LOG_VERBOSE = redis.LOG_VERBOSE, LOG_NOTICE = redis.LOG_NOTICE, LOG_WARNING = redis.LOG_WARNING,
	REDIS_VERSION = redis.REDIS_VERSION, REDIS_VERSION_NUM = redis.REDIS_VERSION_NUM,
}
local entered = function(callback)
	return function(...)
		db = nil
		if not all then
			all = true
			setmetatable(shadow, {__index = redis})
		end
		return callback(...)
	end
end
shadow.register_function = function(...)
	local a, b = ...
	if b then return redis.register_function(a, entered(b)) end
	if a and a.callback then a.callback = entered(a.callback) end
	return redis.register_function(...)
end
return shadow`
)

// prefix returns the prefix whose code ends with last.
func prefix(last string) []byte {
	code := strings.Join(strings.Fields(common+last), " ")
	return []byte(begin + " local redis = (function() " + code + " end)() " + end)
}

// redisUse finds what a text does with `redis`: a field, and the command if it is a call of a
// command in quotes.
var redisUse = regexp.MustCompile(`\bredis\s*\.\s*([A-Za-z_]+)(?:\s*\(\s*(?:'([A-Za-z.]+)'|"([A-Za-z.]+)")\s*[,)])?`)

// mostRead is how long a text is at most that MayPublish reads. Redis scripts are shorter.
const mostRead = 64 << 10

// MayPublish reports whether a text may call PUBLISH: it names it, or it does not name the command
// of a call, or it uses `redis` in another way than by its fields, or it is long.
func MayPublish(text []byte) bool {
	if len(text) > mostRead || bytes.Contains(text, []byte("_G")) || bytes.Contains(text, []byte("fenv")) {
		return true
	}
	uses := redisUse.FindAllSubmatch(text, -1)
	for _, use := range uses {
		command := string(use[2]) + string(use[3])
		if field := string(use[1]); (field == "call" || field == "pcall") && command == "" || strings.EqualFold(command, "publish") {
			return true
		}
	}
	return len(uses) != bytes.Count(text, []byte("redis"))
}

// Library returns the text of a library that notes what it publishes, or the text itself if it
// publishes nothing.
func Library(text []byte) []byte {
	if !MayPublish(text) {
		return text
	}
	return with(prefix(ofLibrary), text)
}

// with puts a prefix before the text, or behind the line of its shebang.
func with(prefix, text []byte) []byte {
	at := 0
	if bytes.HasPrefix(text, []byte("#!")) {
		if at = bytes.IndexByte(text, '\n') + 1; at == 0 {
			return text // Redis refuses it
		}
	}
	return append(append(append(make([]byte, 0, len(text)+len(prefix)), text[:at]...), prefix...), text[at:]...)
}

// Original returns the text that a client has sent, given what Library made of it.
func Original(text []byte) []byte {
	before, rest, found := bytes.Cut(text, []byte(begin))
	if _, after, ended := bytes.Cut(rest, []byte(end)); found && ended {
		return append(bytes.Clone(before), after...)
	}
	return text
}

// Script names a script of a client that Redis runs with a prefix.
type Script struct {
	Own   string // the SHA1 of the client's text
	Redis string // the SHA1 of the text with the prefix
}

// Rename replaces the name that Redis has for the script by the client's.
func (s *Script) Rename(reply []byte) []byte {
	return bytes.ReplaceAll(reply, []byte(s.Redis), []byte(s.Own))
}

// mostScripts is how many scripts a Scripts knows at most.
const mostScripts = 10_000

// Scripts knows the scripts of clients that may publish. It forgets all when they are too many, and
// clients send a text again then: Redis does not have the text without the prefix.
type Scripts struct{ all map[string]*Script } // by Script.Own

// Text returns the text for Redis of a script, and its names; nil for one that runs unchanged.
func (s *Scripts) Text(text []byte) ([]byte, *Script) {
	if !MayPublish(text) {
		return text, nil
	}
	own, prefixed := sha(text), with(prefix(ofScript), text)
	known := s.Named([]byte(own))
	if known == nil {
		known = &Script{Own: own, Redis: sha(prefixed)}
		if s.all == nil || len(s.all) >= mostScripts {
			s.all = make(map[string]*Script)
		}
		s.all[own] = known
	}
	return prefixed, known
}

// Named returns the script that a client names by its SHA1; nil for one that Redis knows by that
// name.
func (s *Scripts) Named(own []byte) *Script {
	return s.all[strings.ToLower(string(own))]
}

func sha(text []byte) string {
	sum := sha1.Sum(text) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}
