
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Applying the messages of other zones.

-- beat takes the cursors that another zone reported. Those of this zone itself come from its own topic when
-- it recovers: it must reach them again. It may have reported lower ones since, when it came back older before.
local function beat(out, origin, effect)
	select_db('0')
	local fields = {}
	for i = 5, #effect - 1, 2 do
		local field, id = origin .. ' ' .. effect[i], effect[i + 1]
		if origin ~= c.zone or id_before(call('HGET', state(out, 'reported'), field) or NO_ID, id) then
			fields[#fields + 1], fields[#fields + 2] = field, id
		end
	end
	sliced('HSET', state(out, 'reported'), fields, 1, #fields)
end

local function not_applied(id, e, why)
	why = type(why) == 'table' and why.err or tostring(why)
	redis.log(redis.LOG_WARNING, 'sonic: cannot apply ' .. tostring(e[1]) .. ' of ' .. c.origin .. ' ' .. id
		.. ' to ' .. tostring(e[4]) .. ': ' .. why)
	return 'diverged'
end

local WHOLESALE = {S = true, R = true, D = true}

local NO_DATA = {N = true, O = true, _ = true}

-- Plain effects are S under lww of a key that never expires: most of most messages. Those that come one behind the
-- other, of different keys, are applied together, with one reading and one writing of versions. c.waiting holds them:
-- effect, version, ..
local MOST_WAITING = 200

-- apply_plain applies the effects that wait. Each is as lww.wholesale would do it alone.
local function apply_plain()
	local list, counts = c.waiting, c.counts
	local n = #list
	if n == 0 then return end
	c.waiting, c.waits_for = {}, {}
	local fields = {}
	for i = 1, n, 2 do
		local e, j = list[i], (i - 1) / 2 * 5
		local name = e[3] .. ':' .. e[4]
		fields[j + 1], fields[j + 2], fields[j + 3] = 'k' .. name, 'x' .. name, 'th' .. name
		fields[j + 4], fields[j + 5] = 'ts' .. name, 'tz' .. name
	end
	select_db('0')
	local stored = call('HMGET', c.ver, unpack(fields))
	-- The versions come first, as that of a single effect does.
	local versions, version_count = {}, 0
	local alone_then = {}
	for i = 1, n, 2 do
		local e, v, j = list[i], list[i + 1], (i - 1) / 2 * 5
		local flushed = version.flushed(c.ver, e[3])
		local typed = stored[j + 3] or stored[j + 4] or stored[j + 5]
		local simple = not (stored[j + 2] or typed or flushed and before(v, flushed))
		local whole = stored[j + 1]
		if simple and whole then
			local ms, seq = string.match(whole, '^(%d+)%-(%d+)@?[^ ]*$')
			ms, seq = tonumber(ms), tonumber(seq)
			simple = ms and (ms < v.ms or ms == v.ms and seq < v.seq)
		end
		if simple then
			versions[version_count + 1], versions[version_count + 2] = fields[j + 1], v.text
			version_count = version_count + 2
		else
			alone_then[i] = true
		end
	end
	if version_count > 0 then call('HSET', c.ver, unpack(versions)) end
	for i = 1, n, 2 do
		local e = list[i]
		local done, result
		-- Before it is applied: it may have this zone ask.
		if c.wants then requests.forget(c.outbox, c.origin, e[3], e[4], list[i + 1]) end
		if alone_then[i] then
			c.policy = 'l'
			done, result = pcall(effects.S, e, list[i + 1])
		else
			result = try_db(e[3]) or try('SET', e[4], e[5])
			done = not result.err
			if done then result = 'applied' end
		end
		if not done then result = not_applied(list[i + 1].text, e, result) end
		counts[result] = counts[result] + 1
	end
	lww.lost_expiry()
end

-- postpone has a plain effect wait for others, and tells whether it does. Those that wait are applied before any
-- other effect.
local function postpone(e, v)
	if e[1] ~= 'S' or e[2] ~= 'l' or e[6] ~= '' then
		apply_plain()
		return false
	end
	local name = e[3] .. ':' .. e[4]
	if c.waits_for[name] or #c.waiting >= MOST_WAITING then apply_plain() end
	c.waits_for[name] = true
	local waiting = c.waiting
	local n = #waiting
	waiting[n + 1], waiting[n + 2] = e, v
	return true
end

-- apply_entry applies the effects of one entry, but for plain ones, which may wait.
local function apply_entry(id, packed)
	local out, origin, counts = c.outbox, c.origin, c.counts
	local v = version.of(id, origin)
	local restored -- a key of this zone's own that it had lost
	local offset = 0
	while offset >= 0 and offset < #packed do
		local list = {cmsgpack.unpack_limit(packed, 100, offset)}
		offset = list[1]
		for i = 2, #list do
			local e = list[i]
			local op, policy = e[1], e[2]
			local later = postpone(e, v)
			c.policy = policy
			if op == 'N' then
				if e[5] == c.zone and origin ~= c.zone then
					if c.answered < ANSWERS and (c.ready or not c.clustered and #behind(out) == 0) then
						c.answered = c.answered + requests.answer(out, origin, id, policy, e[3], e[4])
					else
						requests.defer(out, origin, id, policy, e[3], e[4])
					end
				end
			elseif op == 'O' then
				local waits, own = requests.is_awaited(out, origin, e[3], e[4], e[6])
				if e[5] ~= c.zone or not waits then return end
				requests.forget(out, origin, e[3], e[4])
				if own then restored = e end
			elseif op == '_' then
				beat(out, origin, e)
			elseif not later and not (op == 'P' and origin == c.zone) then
				if c.wants and policy == 'l' and WHOLESALE[op] then requests.forget(out, origin, e[3], e[4], v) end
				local done, result = true, 'applied'
				if not (c.filled and policy ~= 'l' and op ~= 'P' and unversioned.has(v, e[3], e[4])) then
					done, result = pcall(effects[op], e, v)
				end
				if not done then result = not_applied(id, e, result) end
				counts[result] = counts[result] + 1
			end
		end
	end
	-- Other zones may hold something else than the one that was asked.
	if restored then requests.answer(out, nil, nil, restored[2], restored[3], restored[4]) end
end

-- collect keeps a part of a message. It returns the status when there is no whole payload yet, else nil and the
-- payload.
local function collect(out, origin, last, part, payload)
	local k, n = string.match(part, '^(%d+)/(%d+)$')
	k, n = tonumber(k), tonumber(n)
	local key, cur = state(out, 'part:' .. origin), state(out, 'cur')
	local had_last, had = string.match(call('HGET', cur, 'p ' .. origin) or '', '^(.*) (%d+)$')
	had = had_last == last and tonumber(had) or 0
	if k <= had and k > 1 then return 'duplicate' end
	if k > had + 1 then return 'gap' end
	if k == 1 then call('DEL', key) end
	call('RPUSH', key, payload) -- a string of Redis would have no more than 512 MiB
	call('HSET', cur, 'p ' .. origin, last .. ' ' .. part:match('^%d+'))
	if k < n then return 'part' end
	return nil, concat(call('LRANGE', key, '0', '-1'))
end

-- uncollect forgets the last part of a message, which cannot be applied: it comes again.
local function uncollect(out, origin, last, part)
	if part == '' then return end
	local n = tonumber(string.match(part, '/(%d+)$'))
	call('RPOP', state(out, 'part:' .. origin))
	call('HSET', state(out, 'cur'), 'p ' .. origin, last .. ' ' .. format('%d', n - 1))
end

-- forget_bootstrap removes what says how far the copy was, once all of it has been passed.
local function forget_bootstrap(cur)
	for origin, id in string.gmatch(call('HGET', c.filled, 'end') or '', '(%S+) (%S+)') do
		if origin ~= c.zone and c.others[origin] and id_before(call('HGET', cur, origin) or NO_ID, id) then return end
	end
	call('UNLINK', c.filled)
end

-- sonic_apply runs when Redis has reached its bound of memory, too: what other zones wrote cannot be refused, and
-- their deletions free memory.
register('sonic_apply', {'allow-oom'}, function(out, args)
	local shard, epoch, prev, last, part, message, payload = unpack(args)
	-- r: what this primary of a cluster may have lost is applied again.
	local recovers = string.sub(epoch, 1, 1) == 'r'
	if recovers then epoch = string.sub(epoch, 2) end
	local moving = shards.use(out, recovers and not c.ready)
	if moving then return moving end
	-- A zone with a cluster has a cursor for each slot: <zone>/<slot>.
	local origin = string.match(shard, '^[^/]*')
	if c.clustered then
		-- Own effects come first: what others send raises the last id of the stream, which tells how much of them is
		-- lost.
		if not c.opened or not c.ready and not recovers or origin ~= c.zone and c.recovering[c.zone] then return NOT_READY end
	elseif not c.opened then
		local problem = read_meta(out)
		if problem then return problem end
		if origin ~= c.zone then return NOT_READY end
		if call('EXISTS', out) == 0 then return NOT_READY end
	end
	if origin ~= c.zone and not c.others[origin] then
		-- Another Sonic of this zone, which owns the topic, may not have been started again since the zone was named.
		return {err = 'SONICNOTREADY zone ' .. origin .. ' is not in the zones with which this Redis was opened: '
			.. 'start all Sonics of zone ' .. c.zone .. ' again, with the same zones'}
	end
	if c.clustered then shards.read_pruned(out) end

	local cur = state(out, shard == origin and 'cur' or 'slots')
	local cursor, message_before
	if origin == c.zone then
		-- What this Redis has lost is behind its stream's last id. It applies that before it is open.
		cursor = shards.latest()
		if c.clustered and c.ready or not c.clustered and c.opened then cursor = last end
		message_before = ''
	else
		local stored = call('HMGET', cur, shard, 'm ' .. shard)
		cursor, message_before = stored[1] or NO_ID, stored[2] or ''
	end
	local counts = {entries = 0, applied = 0, lost = 0, dead = 0, diverged = 0, wanted = 0}
	local function reply(status)
		return {
			status, cursor, message_before, format('%d', counts.entries), format('%d', counts.applied),
			format('%d', counts.lost), format('%d', counts.dead), format('%d', counts.diverged),
			format('%d', counts.wanted), format('%d', math.max(0, ms_of(shards.latest()) - wall_clock())),
			c.ready and '1' or '0',
		}
	end
	if not id_before(cursor, last) then return reply('duplicate') end
	if id_before(cursor, prev) and origin ~= c.zone then return reply('gap') end
	if part ~= '' then
		local status
		status, payload = collect(out, shard, last, part, payload)
		if status then return reply(status) end
	end
	local readable, entries = pcall(cmsgpack.unpack, payload)
	if not readable or type(entries) ~= 'table' or #entries % 2 ~= 0 then
		uncollect(out, shard, last, part)
		return {err = 'SONICPAYLOAD the message of ' .. origin .. ' up to ' .. last .. ' has a format that this version cannot read'}
	end

	for i = 1, #entries, 2 do
		local op = first_op(entries[i + 1])
		-- Without this effect the zones would stay different.
		local refused = op == 'F' and c.clustered and shards.cannot_flush()
		if refused then
			uncollect(out, shard, last, part)
			return refused
		end
		if op and not effects[op] and not NO_DATA[op] then
			uncollect(out, shard, last, part)
			return {err = 'SONICNEWER ' .. origin .. ' sent an effect ' .. entries[i] .. ' of kind ' .. op
				.. ', which this Redis\' library does not know: run the newer version of Sonic in zone ' .. c.zone .. ', too'}
		end
	end

	c.reached_before = version.parse(shards.latest())
	-- From here on local writes, and what is appended below, are newer than all of this message.
	raise(out, last)
	c.reached_before.raised = c.last_id
	c.ver, c.emptied, c.origin, c.counts = VERSION_HASH[out], {}, origin, counts
	c.filled = call('EXISTS', state(out, 'boot')) == 1 and state(out, 'boot')
	local wall = wall_clock()
	local stream = math.max(ms_of(c.last_id), c.watermark)
	c.clock = math.max(stream, wall)
	c.ahead = stream >= wall
	c.recovers = not c.ready
	c.wants, c.answered = call('EXISTS', state(out, 'requests')) == 1, 0
	local overlaps = prev ~= cursor
	c.waiting, c.waits_for = {}, {} -- a call that failed may have left some
	for i = 1, #entries, 2 do
		local id, packed = entries[i], entries[i + 1]
		if packed ~= '' and not (overlaps and not id_before(cursor, id)) then
			local done, why = pcall(apply_entry, id, packed)
			if not done then
				not_applied(id, {'the rest of an entry'}, why)
				counts.diverged = counts.diverged + 1
			end
			lww.lost_expiry()
			counts.entries = counts.entries + 1
		end
	end
	apply_plain()
	select_db('0')
	cursor = last
	if origin ~= c.zone then
		message_before = message
		call('HSET', cur, shard, last, 'm ' .. shard, message, 'e ' .. shard, epoch)
	end
	if part ~= '' then
		call('DEL', state(out, 'part:' .. shard))
		call('HDEL', cur, 'p ' .. shard)
	end
	if c.filled and c.opened and not c.clustered then forget_bootstrap(state(out, 'cur')) end
	if not c.clustered then shards.become_ready(out) end
	return reply('applied')
end)

-- become_ready has this Redis take writes once it has reached all cursors that it once reported, and has its own
-- effects.
function shards.become_ready(out)
	if c.opened and not c.ready and #behind(out) == 0 then
		requests.send_deferred(out)
		c.ready = not requests.awaits_own(out)
	end
end

-- sonic_reached origin epoch cursor message zone id ..: every effect of a zone with a cluster before the cursor is
-- applied, and so is the message. The others are cursors that the zone reported. epoch is that of this Redis when who
-- calls has read the cursor from which on it has applied all: if Redis was opened again since, it may have lost
-- something since.
always('sonic_reached', 'opened', function(out, args)
	local origin, epoch, id, message = unpack(args, 1, 4)
	if c.clustered or not c.others[origin] then return NOT_READY end
	if call('HGET', state(out, 'meta'), 'epoch') ~= epoch then return {err = 'SONICOLDER this Redis was opened again'} end
	local cur, reported = state(out, 'cur'), {}
	if not id_before(id, call('HGET', cur, origin) or NO_ID) then
		call('HSET', cur, origin, id, 'm ' .. origin, message)
	end
	for i = 5, #args, 2 do
		reported[#reported + 1], reported[#reported + 2] = origin .. ' ' .. args[i], args[i + 1]
	end
	sliced('HSET', state(out, 'reported'), reported, 1, #reported)
	shards.become_ready(out)
	return c.ready and 1 or 0
end)

end
