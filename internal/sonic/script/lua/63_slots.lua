
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- The shards of a primary of a Redis Cluster. These functions have keys of many slots: their names are arguments.

local function across(name, callback)
	register(name, {'allow-oom', 'allow-cross-slot-keys'}, function(_, args) return callback(args) end)
end

-- begin_recovery begins a recovery: this primary may lack effects of all zones.
local function begin_recovery()
	c.ready, c.recovering, c.marked = false, {[c.zone] = true}, {}
	for i = 1, #c.others do c.recovering[c.others[i]] = true end
	local now = call('TIME')
	c.opening = now[1] .. '.' .. now[2]
end

-- sonic_open_primary zone flags floor count other.. default [prefix policy]..: this Redis is a primary of a cluster,
-- and takes writes from now on. flags: r, it is ready; without, it takes no writes yet, but what it has lost is
-- applied to it, see sonic_recovered. b and a number, what all streams may hold in bytes. floor is an id: no entry
-- gets one before it. The zone has reported to others that they have all entries before it, and the clock here may be
-- behind that of the primary before. A primary that another zone has opened refuses, until it is restarted.
across('sonic_open_primary', function(args)
	local name, flags, floor = args[1], args[2], args[3]
	if c.opened and c.clustered and c.zone ~= name then
		return {err = 'SONICZONE this Redis belongs to zone ' .. c.zone}
	end
	if not c.clustered then
		c.streams, c.bytes, c.unread, c.last_read, c.deferred_streams = {}, 0, {}, {}, {}
	end
	shards.configure(name, args, 4)
	c.clustered = true
	backlog.limit(string.match(flags, 'b(%d+)'), false)
	shards.raise_watermark(ms_of(floor))
	c.flushes = {}
	c.ready = string.find(flags, 'r', 1, true) ~= nil
	c.recovering = {}
	if not c.ready then begin_recovery() end
	return 1
end)

-- sonic_mark_recovery count [zone marker].. stream..: the slots of these streams may lack what the topics of the zones
-- have behind the markers. The mark is in each slot, so that it moves with it: sonic_hold finds it at the primary that
-- the slot moves to, and that recovers then, too. It is in the hash `recovery`: zone to marker, and '' to the opening.
-- It fails if a slot was not filled to the end by a bootstrap. Else it returns the streams of the slots that it could
-- not mark: they are moving, or elsewhere.
across('sonic_mark_recovery', function(args)
	local count = tonumber(args[1])
	if not c.opened or c.ready then return NOT_READY end
	local missing = {}
	for i = 2 + 2 * count, #args do
		local out = args[i]
		local source = try('HGET', state(out, 'meta'), 'bootstrap')
		if type(source) == 'string' then return shards.unfilled(source) end
		if failed(try('HSET', state(out, 'recovery'), '', c.opening, unpack(args, 2, 1 + 2 * count))) then
			missing[#missing + 1] = out
		else
			c.marked[out] = true
		end
	end
	return missing
end)

-- sonic_recovered zone [opening]: all that the topic of a zone has, and that this primary may have lost, is applied
-- to it again. It is ready once that was said of all zones; it returns 1 then. opening is what sonic_primary
-- returned before: if this primary was opened again since, it may have lost something since.
across('sonic_recovered', function(args)
	if not c.opened or args[2] and not c.ready and args[2] ~= c.opening then return NOT_READY end
	c.recovering[args[1]] = nil
	c.ready = not next(c.recovering)
	if c.ready then
		for out in pairs(c.marked) do
			if try('HGET', state(out, 'recovery'), '') == c.opening then try('DEL', state(out, 'recovery')) end
		end
		c.marked = {}
	end
	return c.ready and 1 or 0
end)

-- sonic_primary tells whether this primary is opened, whether it is ready, the bytes that its streams hold, its clock
-- in milliseconds, and if it is not ready, which opening this is, and the zones of which it may lack effects.
across('sonic_primary', function()
	local values = {
		c.opened and '1' or '0', c.ready and '1' or '0', format('%.0f', c.bytes),
		format('%d', math.max(wall_clock(), c.watermark)),
	}
	if c.opened and not c.ready then
		values[5] = c.opening
		for zone in pairs(c.recovering) do values[#values + 1] = zone end
	end
	return values
end)

-- sonic_oldest returns the time of the oldest entry of all streams in milliseconds, 0 if there is none.
across('sonic_oldest', function()
	local oldest = 1 / 0
	for _, stream in pairs(c.streams) do oldest = math.min(oldest, stream.since) end
	return oldest < 1 / 0 and format('%d', oldest) or '0'
end)

-- sonic_hold stream..: looks whether this primary has the slots of these streams. It forgets those that it does not
-- have, and returns them. It is called when a primary was opened; when a slot has moved, at the primary that has it
-- now, then at the one that had it. If a slot comes from a primary that had not recovered, this one begins to.
across('sonic_hold', function(args)
	local missing, recovers = {}, false
	for i = 1, #args do
		local out = args[i]
		local length = try('XLEN', out)
		backlog.trim(out, '', 0)
		c.last_read[out] = nil
		c.deferred_streams[out] = nil
		if type(length) ~= 'number' then
			missing[#missing + 1] = out
			c.marked[out] = nil
		else
			local opening = try('HGET', state(out, 'recovery'), '')
			if type(opening) == 'string' then recovers = recovers or c.ready or not c.marked[out] or opening ~= c.opening end
			if length > 0 then
				backlog.start(out, call('MEMORY', 'USAGE', out, 'SAMPLES', '0'), length, backlog.first_ms(out))
				c.unread[out] = true
			end
			-- While the slot moves that is an error: it may owe.
			if try('EXISTS', state(out, 'answers'), state(out, 'requests')) ~= 0 then c.deferred_streams[out] = true end
		end
	end
	if recovers and c.opened then begin_recovery() end
	return missing
end)

-- Bytes of effects that one call of sonic_take returns, about.
local MOST_READ = 262144

-- unread_entries reads entries of a stream that no call has returned yet, and returns the id before them, too. It
-- returns nothing when it cannot: keys of the slot are at another primary, or the cluster is down.
local function unread_entries(out)
	local from = c.last_read[out]
	if not from then
		from = try('HGET', state(out, 'meta'), 'shipped') or NO_ID
		if failed(from) then return nil end
	end
	local entries = try('XRANGE', out, '(' .. from, '+', 'COUNT', '64')
	if failed(entries) then return nil end
	return entries, from
end

-- sonic_take reader [again]: entries that no call has returned yet: stream, the entry before them, entries, .. With
-- `again` those are returned, too, which were and are not shipped. A reader begins with it, and calls of other
-- readers are refused from then on: a Sonic that has lost the topic may not know it yet, and would never store what
-- it takes. Last comes a time in milliseconds if nothing is left: all entries before it were returned. While a slot
-- moves it does not come if the slot has entries that were not. Nor does it afterwards, until sonic_hold has run:
-- they are elsewhere.
across('sonic_take', function(args)
	if not c.opened then return NOT_READY end
	if args[2] then c.reader = args[1] end
	if not args[1] or args[1] ~= c.reader then return {err = 'SONICOLDER another Sonic reads this primary now'} end
	if c.ready then shards.send_deferred() end
	if args[2] then
		c.last_read, c.unread, c.reading = {}, {}, {}
		for out in pairs(c.streams) do c.unread[out] = true end
	end
	local list, bytes, unread = {}, 0, {}
	while next(c.reading) or next(c.unread) do
		if not next(c.reading) then c.reading, c.unread = c.unread, {} end
		for out in pairs(c.reading) do
			if bytes >= MOST_READ then break end
			local entries, from = unread_entries(out)
			if not entries then
				unread[#unread + 1] = out
			elseif #entries > 0 then
				list[#list + 1], list[#list + 2], list[#list + 3] = out, from, entries
				c.last_read[out] = entries[#entries][1]
				for i = 1, #entries do bytes = bytes + #entries[i][2][2] + ENTRY_OVERHEAD end
				if #entries == 64 then c.unread[out] = true end
			end
			c.reading[out] = nil
		end
		if bytes >= MOST_READ then break end
	end
	local left = #unread > 0 or next(c.reading) or next(c.unread)
	for i = 1, #unread do c.unread[unread[i]] = true end
	if not left then
		shards.raise_watermark(wall_clock())
		list[#list + 1] = c.watermark_text
	end
	return list
end)

-- sonic_shipped_all stream id ..: sonic_shipped of many streams. It returns the streams whose slots this primary does
-- not have, or not all.
across('sonic_shipped_all', function(args)
	local missing = {}
	for i = 1, #args, 2 do
		if shards.use(args[i], true) then
			missing[#missing + 1] = args[i]
		else
			shards.shipped(args[i], args[i + 1])
		end
	end
	return missing
end)

end
