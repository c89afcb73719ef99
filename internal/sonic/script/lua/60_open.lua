
local function redis_state(out)
	local meta = call('HMGET', state(out, 'meta'), 'layout', 'zone', 'epoch', 'shipped', 'history')
	return {
		'layout', meta[1] or LAYOUT, 'zone', meta[2] or '', 'epoch', meta[3] or '0', 'last', last_of(out),
		'shipped', meta[4] or NO_ID, 'opened', c.opened and '1' or '0', 'ready', c.ready and '1' or '0',
		'cursors', all_cursors(out), 'behind', c.opened and behind(out) or {}, 'history', meta[5] or '',
	}
end

-- sonic_state tells what this Redis holds. It changes nothing, and works always, on a replica, too.
reads('sonic_state', nil, redis_state)

local POLICIES = {lww = 'l', none = 'n', counter = 'c'}

-- unfilled is the error of a Redis that a bootstrap has not filled to the end.
function shards.unfilled(source)
	return {err = 'SONICBOOTSTRAP this Redis was not filled to the end: run sonic -bootstrap ' .. source .. ' again'}
end

-- read_meta takes the zone's name and the prune mark from what this Redis holds.
local function read_meta(out)
	local meta = call('HMGET', state(out, 'meta'), 'zone', 'pruned', 'layout', 'bootstrap')
	if meta[3] and tonumber(meta[3]) > tonumber(LAYOUT) then
		return {err = 'SONICLAYOUT this Redis holds state of layout ' .. meta[3] .. ', and this version knows only up to '
			.. LAYOUT .. ': run the newer version'}
	end
	if meta[4] then return shards.unfilled(meta[4]) end
	c.zone = meta[1] or c.zone
	set_pruned(meta[2] or NO_ID)
	c.flushes = {}
	c.last_id = last_of(out)
end

-- read_pruned takes the prune mark from what a shard of a cluster holds: it moves with the slot, and is as old as the
-- versions.
function shards.read_pruned(out)
	set_pruned(call('HGET', state(out, 'meta'), 'pruned') or NO_ID)
end

-- configure sets the zone's name, and the other zones and policies that args name from at on: count other.. default
-- [prefix policy]..
function shards.configure(name, args, at)
	local count, list = tonumber(args[at]), {}
	local others = {unpack(args, at + 1, at + count)}
	for i = 1, count do others[others[i]] = true end
	for i = at + 2 + count, #args, 2 do list[#list + 1] = {args[i], POLICIES[args[i + 1]]} end
	table.sort(list, function(a, b) return #a[1] > #b[1] end)
	c.zone, c.others, c.alone, c.opened = name, others, count == 0, true
	c.default_policy, c.policies, c.dropping = POLICIES[args[at + 1 + count]], list, false
end

-- sonic_open zone epoch floor flags count other.. default [prefix policy]..: writes are taken from now on. flags: f,
-- to be ready whatever this Redis has lost of other zones; an id, where the stream must have come to: who calls it
-- has compared that much with the topic; b and a number, what the stream may hold in bytes, with d when effects are
-- dropped past it.
always('sonic_open', nil, function(out, args)
	local name, epoch, floor, flags = unpack(args, 1, 4)
	local meta = state(out, 'meta')
	local stored, stored_epoch = unpack(call('HMGET', meta, 'zone', 'epoch'))
	if stored and stored ~= name then
		return {err = 'SONICZONE this Redis belongs to zone ' .. stored}
	end
	if tonumber(epoch) < tonumber(stored_epoch or '0') then
		return {err = 'SONICEPOCH epoch ' .. epoch .. ' is lower than ' .. stored_epoch}
	end
	local problem = read_meta(out)
	if problem then return problem end
	local least = string.match(flags, '%d+%-%d+')
	if least and id_before(c.last_id, least) then
		return {err = 'SONICOLDER the stream of this Redis ends at ' .. c.last_id .. ', and ended at ' .. least
			.. ' a moment ago'}
	end

	if call('EXISTS', out) == 0 then call('XADD', out, 'MAXLEN', '0', '0-1', 'e', '') end
	c.last_id = last_of(out)
	raise(out, floor)
	local filled = call('HGET', meta, 'floor') -- the newest version that a bootstrap has brought
	if filled then raise(out, filled) end
	call('HSET', meta, 'zone', name, 'epoch', epoch, 'layout', LAYOUT)
	call('HDEL', meta, 'history')
	shards.configure(name, args, 5)
	c.clustered, c.watermark, c.streams, c.bytes = false, 0, {}, 0
	if c.alone then call('UNLINK', VERSION_HASH[out]) end -- no version is stored of what is written from now on
	requests.repeat_all(out)
	local length = call('XLEN', out)
	if length > 0 then backlog.start(out, call('MEMORY', 'USAGE', out, 'SAMPLES', '0'), length) end
	local bound, drops = string.match(flags, 'b(%d+)(d?)')
	backlog.limit(bound, drops == 'd')
	local whole = string.find(flags, 'f', 1, true) ~= nil or #behind(out) == 0
	if whole then requests.send_deferred(out) end
	c.ready = string.find(flags, 'f', 1, true) ~= nil or whole and not requests.awaits_own(out)
	return redis_state(out)
end)

-- close_emptied closes one Redis that lost Sonic's state while it was open, by a FLUSHALL that did not go through Sonic.
-- It returns whether it has closed it.
function shards.close_emptied(out)
	if not c.opened or c.alone or c.clustered or call('HGET', state(out, 'meta'), 'zone') == c.zone then return false end
	c.ready, c.opened = false, false
	return true
end

-- sonic_close [history]: no writes are taken until sonic_open. history, rejected, says that the effects of this Redis
-- are not those of the topic. sonic_accept makes it accepted, and returns 1 until sonic_open has removed it.
always('sonic_close', nil, function(out, args)
	c.ready, c.opened = false, false
	local meta = state(out, 'meta')
	if args[1] and call('HGET', meta, 'history') ~= 'accepted' then call('HSET', meta, 'history', args[1]) end
	return 1
end)

always('sonic_accept', nil, function(out)
	local meta = state(out, 'meta')
	if not call('HGET', meta, 'history') then return 0 end
	call('HSET', meta, 'history', 'accepted')
	return 1
end)

-- sonic_cursors [origin cursor message epoch]: with arguments it sets a cursor first.
always('sonic_cursors', nil, function(out, args)
	if args[1] then
		if #args ~= 4 or not string.find(args[2], '^%d+%-%d+$') then -- a person may have typed it
			return {err = 'SONICARG origin cursor message epoch'}
		end
		local origin = args[1]
		call('HSET', state(out, 'cur'), origin, args[2], 'm ' .. origin, args[3], 'e ' .. origin, args[4])
		call('HDEL', state(out, 'cur'), 'p ' .. origin)
		call('DEL', state(out, 'part:' .. origin))
	end
	return all_cursors(out)
end)

-- shipped notes that the broker has all entries of a stream up to id, and removes these. It returns how many are
-- left, and up to which id the broker has all.
function shards.shipped(out, id)
	local meta = state(out, 'meta')
	local before = call('HGET', meta, 'shipped') or NO_ID
	if id_before(before, id) then
		before = id
		call('HSET', meta, 'shipped', id)
	end
	local ms, seq = numbers_of(id)
	call('XTRIM', out, 'MINID', format('%d-%.0f', ms, seq + 1))
	local length = call('XLEN', out)
	backlog.trim(out, id, length)
	return length, before
end

-- sonic_shipped id [sent]: the broker has acknowledged all entries up to id, and so many of those that were
-- published.
always('sonic_shipped', nil, function(out, args) return {shards.shipped(out, args[1])} end)
