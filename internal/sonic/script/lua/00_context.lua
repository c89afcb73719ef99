#!lua name=sonic

-- Redis hides all globals while it loads a library. bind sets these locals when the first function runs; locals are
-- also quicker than globals. Every function that may be the first one calls bind before it uses them.
local function globals() return string, math, table, tonumber, tostring, type, unpack, pcall end
local string, math, table, tonumber, tostring, type, unpack, pcall
local format, concat
local bind

-- The context: the only variables of the library. Bodies of commands get it as their argument.
local c = {
	-- Settings, which sonic_open or sonic_open_primary sets. Redis keeps none of them over a restart or a failover:
	-- the library is not ready then, and refuses every write until a Sonic has looked at what this Redis holds.
	opened = false,
	ready = false, -- opened, and this Redis has reached all cursors that its zone ever reported
	zone = '', -- the name of this zone
	others = {}, -- the other zones: a list, and a set by name
	alone = true, -- there is no other zone: nothing is appended, for nobody would read it
	policies = {}, -- of {prefix, policy}, longest prefix first
	default_policy = 'l',

	-- The stream and its versions.
	last_id = nil, -- of the stream; nil in a cluster until shards.latest reads it
	open_tx = nil, -- the transaction whose effects were appended last: its closing entry is missing
	pruned = {ms = 0, seq = 0, zone = ''}, -- the greatest version that was pruned; its zone is before all zones
	-- No entry has an id before this time in ms, as number and as text: others know that they have all entries before
	-- it.
	watermark = 0, watermark_text = '', least_id = '',
	deferred = true, -- the hash `answers` may hold answers, see 57_requests.lua
	flushes = {}, -- the version of the newest flush of a database, false for none: those that were asked for
	bytes = 0, bound = 1 / 0, -- what the streams hold, in bytes, and what they may hold
	drops = false, -- past the bound effects are dropped; else writes are refused
	dropping = false, -- effects are dropped now, see 12_dropped.lua
	-- What is counted of each stream, see 10_append.lua.
	streams = {},

	-- A primary of a Redis Cluster. Each slot is a shard: it has a stream of effects, versions and cursors of its
	-- own, in keys of the same slot, so that all of it moves with the slot. Functions of writes get the stream of the
	-- slot of their keys.
	clustered = false,
	recovering = {}, -- zones of which a primary that was opened without being ready may lack effects
	opening = '', -- tells one such opening from another
	marked = {}, -- streams of the slots that sonic_mark_recovery has marked in this opening
	reader = nil, -- the only one whom sonic_take answers
	-- By stream: whether sonic_take may find new entries; whether it is about to read it; the last entry that it
	-- returned; whether the shard may owe answers.
	unread = {}, reading = {}, last_read = {}, deferred_streams = {},

	-- The present call.
	outbox = nil, -- the stream
	tx = nil, -- the transaction of the write
	db = '0', -- the database of the write
	resp3 = false, -- the client speaks RESP3
	selected = nil, -- the database of the script while it applies; state keys are in db 0
	work = 0, -- what a function that compares or copies has read, see 70_compare.lua
	digests = nil, -- of the keys of a user's script before it ran

	-- The message that sonic_apply applies.
	ver = nil, -- key of the hash of versions
	clock = 0, -- the time here: of the stream or of Redis, whichever is ahead, in ms
	ahead = false, -- the stream's is: a key whose expiry it has reached may still be in Redis
	recovers = false, -- this Redis came back older than it was, and has not received everything again
	filled = nil, -- key of the hash `boot` while the copy of a bootstrap may be ahead of the cursors
	origin = '', -- the zone of the message
	policy = nil, -- of the present effect
	wants = false, -- requests were not answered, see 57_requests.lua
	answered = 0, -- bytes of answers to requests
	counts = {}, -- of entries, of what became of effects, and of keys that were asked for
	waiting = {}, waits_for = {}, -- plain effects that are applied together, see 61_apply.lua, and their keys
	-- The last id of the stream before the message, and what it was raised to: the only known version in between is
	-- the message's.
	reached_before = nil,
	emptied = {}, -- list of db, key: keys that may have lost their last element
}

local shards = {} -- functions on shards of a Redis Cluster

local NOT_READY = {err = 'SONICNOTREADY no Sonic has opened this Redis'}

-- Lua's unpack fails at about 8,000 values.
local SLICE = 4000

-- state returns the name of a state key of the shard of the stream out: {sonic:N}out -> {sonic:N}name.
local function state(out, name) return string.sub(out, 1, -4) .. name end

-- policy_of returns how conflicts about key are resolved: 'l', 'n' or 'c'.
local function policy_of(key)
	local policies = c.policies
	for i = 1, #policies do
		local p = policies[i]
		if string.sub(key, 1, #p[1]) == p[1] then return p[2] end
	end
	return c.default_policy
end

-- mode_of reads the first argument of a write: the database, then flags: t and the id of a
-- transaction in hexadecimal digits, p when the reply is to carry the entry's id, r when the client
-- speaks RESP3.
local function mode_of(word)
	local db, flags = string.match(word, '^(%d+)(.*)$')
	local tx = string.match(flags, 't(%x+)')
	return db, tx, string.find(flags, 'p', 1, true) ~= nil, string.find(flags, 'r', 1, true) ~= nil
end

local function failed(reply) return type(reply) == 'table' and reply.err ~= nil end
