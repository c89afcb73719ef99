
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Filling the Redis of an empty zone from that of another one, the source, while writes go on.
--
-- The copy is what the zone would have, had it got all effects up to some moment and a few of those behind it: how
-- far the source was before the copy began becomes the zone's cursors, and its own effects that are behind are in its
-- topic. Applying an effect again that the copy has is nothing new, for the copy has the source's versions, too.
-- Counters, and keys of policy none, have no versions: the hash `boot` holds, by "<db>:<key>", how far the source was
-- when it read the key: zone, id, .. with spaces between. A Redis Cluster has that hash in each slot. Its field `end`
-- says how far the source was at the end: of all zones for one Redis, which removes the hash when its cursors are
-- past that; for a Redis Cluster, whose slots have cursors of their own, one id that the horizon is to be past.
--
-- Sonic writes the state of a Redis Cluster by commands of Redis, and that of one Redis at the end by sonic_filled.

-- stored_by writes a stored version as zone asker stores it.
local function stored_by(text, asker)
	local id, origin, rest = string.match(text, '^([%d%-]+)@?([^ ]*)(.*)$')
	if origin == '' then return id .. '@' .. c.zone .. rest end
	if origin == asker then return id .. rest end
	return text
end

-- not_source returns the error when asker cannot be filled from here.
local function not_source(asker)
	if c.others[asker] then return nil end
	return {err = 'SONICARG zone ' .. asker .. ' is not in the zones of this zone: '
		.. 'name it in its zones and start its Sonic again'}
end

-- sonic_source asker: how far this Redis is, its epoch, what it has pruned, how many answers it waits for and how
-- much it has dropped and not shipped since, which cursors asker once reported.
reads('sonic_source', 'ready', function(out, args)
	local asker = args[1]
	local problem = not_source(asker)
	if problem then return problem end
	if c.clustered then shards.read_pruned(out) end
	local reported, all = {}, call('HGETALL', state(out, 'reported'))
	for i = 1, #all, 2 do
		if string.sub(all[i], 1, #asker + 1) == asker .. ' ' then
			reported[#reported + 1], reported[#reported + 2] = all[i], all[i + 1]
		end
	end
	return {
		reached(out), call('HGET', state(out, 'meta'), 'epoch') or '0', c.pruned.text or NO_ID,
		format('%d', call('HLEN', state(out, 'requests')) + call('HLEN', state(out, 'dropped'))), reported,
	}
end)

-- sonic_copy_versions asker cursor count: one step through the hash of versions: the next cursor; field, version, ..
reads('sonic_copy_versions', 'ready', function(out, args)
	local problem = not_source(args[1])
	if problem then return problem end
	local step = call('HSCAN', VERSION_HASH[out], args[2], 'COUNT', args[3])
	local list = step[2]
	for i = 2, #list, 2 do
		-- Operations go on only from what is copied with its content: sonic_copy_keys says from what.
		list[i] = string.gsub(stored_by(list[i], args[1]), ' L$', '')
	end
	return step
end)

-- slot_cursors returns how far this Redis is with one slot of zones that have a cluster: zone, id, .. The script is
-- in db 0.
local function slot_cursors(out, slot)
	local found = {}
	for i = 1, #c.others do
		local id = call('HGET', state(out, 'slots'), c.others[i] .. '/' .. slot)
		if id then found[#found + 1], found[#found + 2] = c.others[i], id end
	end
	return found
end

-- sonic_copy_keys asker db slot key slot key ..: how many of the keys were read, the first ones, when there is too
-- much to read in one call; how far this Redis is; and of each key that is there its name, dump, expiry ('' for
-- never), policy, and a list of its versions: field, version, .. A key without versions has a list of how far this
-- Redis is with its slot of other zones in place of it.
reads('sonic_copy_keys', 'ready', function(out, args)
	local asker, db = args[1], args[2]
	local problem = not_source(asker)
	if problem then return problem end
	local at, list, read = reached(out), {}, 0
	c.work = 0
	for i = 4, #args, 2 do
		local key = args[i]
		select_db(db)
		local dump = call('DUMP', key)
		read, c.work = read + 1, c.work + 1
		if dump then
			c.work = c.work + #dump / BYTES
			local pxat, policy, kind, facts_of, fields = expiry_of(key), policy_of(key), kind_of(key), {}, {}
			if policy == 'c' then
				select_db('0')
				-- Its sum would come behind the copy, which has it. Nothing tells both apart.
				if call('EXISTS', state(out, 'dropped')) == 1 then
					return {err = 'SONICDROPPED zone ' .. c.zone .. ' dropped effects and has not shipped their sums yet: '
						.. 'copy its counters again later'}
				end
			end
			if policy ~= 'l' then
				select_db('0')
				facts_of = slot_cursors(out, args[i - 1])
			else
				local name = db .. ':' .. key
				fields = {'k' .. name, 'x' .. name, 'th' .. name, 'ts' .. name, 'tz' .. name}
				if LETTERS[kind] then
					local elements, prefix = elements_of(key, LETTERS[kind]), element_field(db, key, '')
					for j = 1, #elements do fields[#fields + 1] = prefix .. elements[j] end
					c.work = c.work + #elements
				end
				select_db('0')
				local stored = read_sliced(call, 'HMGET', VERSION_HASH[out], fields, 1, #fields)
				for j = 1, #fields do
					local n = #facts_of
					if stored[j] then facts_of[n + 1], facts_of[n + 2] = fields[j], stored_by(stored[j], asker) end
				end
			end
			local n = #list
			list[n + 1], list[n + 2], list[n + 3], list[n + 4], list[n + 5] = key, dump, pxat, policy, facts_of
		end
		if c.work >= ENOUGH then break end
	end
	return {format('%d', read), at, list}
end)

-- sonic_filled zone own floor pruned epoch, then count and pairs of cursors, of reported cursors, of how far the
-- source was at the end: the copy is whole. A Sonic can open this Redis now.
always('sonic_filled', nil, function(out, args)
	local meta = state(out, 'meta')
	local source = call('HGET', meta, 'bootstrap')
	if not source or c.opened then return {err = 'SONICARG no bootstrap is in progress'} end
	local at = 6
	local function take(name, change)
		local list = {}
		for i = at + 1, at + 2 * tonumber(args[at]), 2 do change(list, args[i], args[i + 1]) end
		at = at + 1 + 2 * tonumber(args[at])
		if #list > 0 then call('HSET', state(out, name), unpack(list)) end
	end
	local function plain(list, field, id) list[#list + 1], list[#list + 2] = field, id end
	take('cur', function(list, origin, id)
		plain(list, origin, id)
		plain(list, 'm ' .. origin, '')
		plain(list, 'e ' .. origin, '0')
	end)
	take('reported', plain)
	local ends = {}
	take('boot', function(_, origin, id) plain(ends, origin, id) end)
	call('HSET', state(out, 'boot'), 'end', concat(ends, ' '))
	call('XADD', out, 'MAXLEN', '0', '0-1', 'e', '')
	if id_before('0-1', args[2]) then call('XSETID', out, args[2]) end
	call('HSET', meta, 'zone', args[1], 'shipped', args[2], 'floor', args[3], 'pruned', args[4], 'epoch', args[5],
		'layout', LAYOUT)
	call('HDEL', meta, 'bootstrap')
	return source
end)

end
