#!lua name=sonic

-- What a Sonic told this library when it opened it. Redis keeps none of it over a restart or a
-- failover: the library is not ready then, and every write is refused until a Sonic has looked at
-- what this Redis holds.
local ready = false
local zone = ''
-- This Redis is a primary of a Redis Cluster. Then each slot is a shard: it has a stream of effects, versions and cursors of its own, in
-- keys of the same slot, so that all of it moves with the slot. The functions of writes get the stream of the slot of their keys.
-- lacks has the zones of which a primary that was opened without being ready may lack effects. opening tells one such opening from another.
-- marked is the set of streams of the slots that sonic_lack has marked in this opening.
local shards = {clustered = false, lacks = {}, opening = '', marked = {}}
local alone = true -- there is no other zone: nothing is noted, for nobody would read it
local policies = {} -- of {prefix, policy}, longest prefix first
local default_policy = 'l'

local NOT_READY = {err = 'SONICNOTREADY no Sonic has opened this Redis'}

-- Lua's unpack fails at about 8,000 values.
local SLICE = 4000

-- Names of the state keys of a shard. All of a shard are in one slot.
local function state(out, name) return string.sub(out, 1, -4) .. name end -- {sonic:N}out -> {sonic:N}name

-- policy_of returns how conflicts about key are resolved: 'l', 'n' or 'c'.
local function policy_of(key)
	for i = 1, #policies do
		local p = policies[i]
		if string.sub(key, 1, #p[1]) == p[1] then return p[2] end
	end
	return default_policy
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
