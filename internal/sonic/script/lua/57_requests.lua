
-- Requests for the state of keys that this zone cannot know (see 50_versions.lua). The hash `requests` holds those
-- that were not answered: "<zone that is asked> <db>:<key>" to "<policy> <id of N>". "*" behind the policy says that
-- this zone lost own effects with an older Redis and has not got them again: it is not ready before the answer came.
-- The key is of policy none, and no versions tell writes of this zone and the answer apart; or it is a list or
-- stream, and a write would ship it as a whole, without what was lost.

-- Bytes of answers that one call ships, about: what is asked of large keys waits for later calls, so that Redis
-- serves clients in between.
local ANSWERS = 4194304

do -- what is local here is of this block alone

local function request_field(target, db, key) return target .. ' ' .. db .. ':' .. key end

-- send_request asks. Questions and their answers are kept: they are few, and somebody waits for them.
local function send_request(out, target, policy, db, key)
	return append(out, '0', nil, cmsgpack.pack({'N', policy, db, key, target}), nil, true)
end

-- will_suffice tells whether the answer to what was asked by the entry id will be newer than all that may be
-- forgotten of a key of which f is known. Without f it will: the key has no versions.
local function will_suffice(id, f)
	if not f then return true end
	local asked = version.of(id, c.zone)
	local newest = newer(f.whole, version.newest_type(f))
	return before(c.pruned, asked) and (not newest or before(newest, asked))
end

-- want asks for the state of key, unless that was asked, has not been answered yet, and the answer will do. It asks the
-- origin of the message that is applied. f is what is known of the key, and policy that of the effect, if not given.
-- While nothing may be asked it only notes the want: sonic_open asks then, or sonic_take. lost says that an own
-- effect is lost, if it is not open yet.
function requests.want(db, key, lost, f, policy)
	policy = policy or c.policy
	local target, is_own = c.origin, c.origin == c.zone
	if is_own then target = c.others[1] or '' end
	-- A primary of a cluster that is not ready gets own effects again that it has lost. Those are known by the last id
	-- of the stream, which a question would raise. What effects of others lack is not its own to state anew.
	local may_ask = c.opened and (c.ready or not c.clustered)
	lost = not may_ask and is_own and (lost or policy == 'n')
	c.wants = true
	select_db('0')
	local hash, field = state(c.outbox, 'requests'), request_field(target, db, key)
	if not lost then
		local asked = call('HGET', hash, field)
		if asked and (not may_ask or will_suffice(string.match(asked, '[^ ]*$'), f)) then return end
	end
	local id = NO_ID
	if may_ask then
		id = send_request(c.outbox, target, policy, db, key)
	else
		c.deferred_streams[c.outbox] = true
	end
	call('HSET', hash, field, policy .. (lost and '* ' or ' ') .. id)
	c.counts.wanted = c.counts.wanted + 1
end

-- repeat_all asks for all that the hash holds, or, if not all, for what nobody was asked yet, and zones that are
-- gone. What a zone was asked that is gone, another one is asked; it is forgotten when there is none.
function requests.repeat_all(out, some)
	local hash = state(out, 'requests')
	local all = call('HGETALL', hash)
	for i = 1, #all, 2 do
		local target, db, key = string.match(all[i], '^([^ ]*) (%d+):(.*)$')
		local policy = string.match(all[i + 1], '^[^ ]*')
		if not c.others[target] then
			call('HDEL', hash, all[i])
			target = c.others[1]
		end
		local is_new = target ~= string.match(all[i], '^[^ ]*') or string.match(all[i + 1], '[^ ]*$') == NO_ID
		if target and (not some or is_new) then
			local id = send_request(out, target, string.sub(policy, 1, 1), db, key)
			call('HSET', hash, request_field(target, db, key), policy .. ' ' .. id)
		end
	end
end

-- awaits_own tells whether an answer is missing without which this zone may not write.
function requests.awaits_own(out)
	local wants = call('HVALS', state(out, 'requests'))
	for i = 1, #wants do
		if string.sub(wants[i], 2, 2) == '*' then return true end
	end
	return false
end

-- answer ships the state of key, which asker wanted by the entry id. Under lww it is for all zones: it has a version.
-- Under none it is for the asker only, and for the last time that it asked: O says so. Without versions nobody could
-- tell how old it is. Without an asker it is for all: the key is this zone's own. It returns how many bytes that was.
function requests.answer(out, asker, id, policy, db, key)
	if try_db(db) then return 0 end
	local effects, versions = state_effects(db, key)
	select_db('0')
	if effects == '' then return 0 end
	if policy ~= 'l' and asker then effects = cmsgpack.pack({'O', policy, db, key, asker, id}) .. effects end
	append(out, '0', nil, effects, versions, true)
	return #effects
end

-- A zone that came back older than it was may have less of a key than the others had from it: an answer under a new
-- version would take that from them. So what it is asked before it has all again waits in the hash `answers`:
-- "<asker> <db>:<key>" to "<policy> <id of N>". It waits for no answer itself: answers of two zones may not wait for
-- each other. There waits, too, what is beyond ANSWERS.
function requests.defer(out, asker, id, policy, db, key)
	select_db('0')
	call('HSET', state(out, 'answers'), request_field(asker, db, key), policy .. ' ' .. id)
	c.deferred, c.deferred_streams[out] = true, true
end

-- send_deferred answers what waited, as much as one call may.
function requests.send_deferred(out)
	if not c.deferred then return end
	select_db('0')
	local hash, shipped = state(out, 'answers'), 0
	local all = call('HGETALL', hash)
	for i = 1, #all, 2 do
		local asker, db, key = string.match(all[i], '^([^ ]*) (%d+):(.*)$')
		local policy, id = string.match(all[i + 1], '^([^ ]*) (.*)$')
		shipped = shipped + requests.answer(out, asker, id, policy, db, key)
		call('HDEL', hash, all[i])
		if shipped > ANSWERS then return end
	end
	c.deferred, c.deferred_streams[out] = false, nil
end

-- send_deferred does for the shards of a cluster what sonic_open and beats do for one Redis, as much as one call may:
-- it answers what waited, and asks what was only noted, and what zones were asked that are gone.
function shards.send_deferred()
	for out in pairs(c.deferred_streams) do
		if not shards.use(out) then
			requests.repeat_all(out, true)
			c.deferred = true
			requests.send_deferred(out)
			if c.deferred then return end
		end
	end
end

-- is_awaited tells whether this zone waits for the answer of origin to the entry id; then also whether the key is its
-- own.
function requests.is_awaited(out, origin, db, key, id)
	select_db('0')
	local stored = call('HGET', state(out, 'requests'), request_field(origin, db, key))
	if not stored or string.match(stored, '[^ ]*$') ~= id then return false end
	return true, string.sub(stored, 1, 2) == 'n*'
end

-- forget forgets a want: origin has sent the key's state, under the version v. Without v it answers just this
-- want. What it sent before it was asked does not do: this zone may have forgotten what is newer.
function requests.forget(out, origin, db, key, v)
	select_db('0')
	local hash, field = state(out, 'requests'), request_field(origin, db, key)
	if v then
		local stored = call('HGET', hash, field)
		if not stored or before(v, version.of(string.match(stored, '[^ ]*$'), c.zone)) then return end
	end
	call('HDEL', hash, field)
end

end
