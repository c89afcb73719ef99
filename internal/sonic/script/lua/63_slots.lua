
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- The shards of a primary of a Redis Cluster. These functions have keys of many slots: their names are arguments.

local function across(name, callback)
	redis.register_function{
		function_name = name, flags = {'allow-oom', 'allow-cross-slot-keys'},
		callback = function(keys, args)
			if not concat then bind() end
			return callback(args)
		end,
	}
end

-- sonic_open_primary zone flags horizon count other.. default [prefix policy]..: this Redis is a primary of a cluster, and takes writes from
-- now on. flags: r, it is ready; without, it takes no writes yet, but what it has lost is applied to it. b and a number, what all streams may
-- hold in bytes. horizon is as in sonic_prune.
across('sonic_open_primary', function(args)
	local name, flags, horizon = args[1], args[2], args[3]
	if #args < 5 or not is_id(horizon) then return bad('zone flags horizon count other.. default [prefix policy]..') end
	local names, default, list = shards.settings(name, args, 4)
	if not names then return default end
	if not shards.clustered then
		shards.held, shards.fresh, shards.taken = {}, {}, {}
		backlog.start(0, 0)
	end
	zone, others, alone, opened, shards.clustered = name, names, #names == 0, true, true
	default_policy, policies = default, list
	unsent.choose(false, false)
	backlog.limit(string.match(flags, 'b(%d+)'), false)
	pruned = versions.of(horizon, '')
	pruned.text = horizon
	versions.flushes = {['0'] = false}
	ready = string.find(flags, 'r', 1, true) ~= nil
	return 1
end)

-- sonic_primary tells whether this primary is opened, whether it is ready, the bytes that its streams hold, its clock in milliseconds.
across('sonic_primary', function()
	return {
		opened and shards.clustered and '1' or '0', ready and shards.clustered and '1' or '0', format('%.0f', backlog.bytes), format('%d', wall_clock()),
	}
end)

-- sonic_hold stream..: this primary has the slots of these streams. It returns those that it does not have.
across('sonic_hold', function(args)
	local missing = {}
	for i = 1, #args do
		local out = args[i]
		local length = try('XLEN', out)
		if type(length) ~= 'number' then
			missing[#missing + 1] = out
		elseif length > 0 then
			shards.keep(out, 0)
			shards.hold(out, call('MEMORY', 'USAGE', out, 'SAMPLES', '0'), length)
		end
	end
	return missing
end)

-- Bytes of effects that one call of sonic_take returns, about.
local MOST_TAKEN = 1048576

-- Streams of shards.fresh that sonic_take is about to read. Those that are filled meanwhile come after them.
local taking = {}

-- sonic_take [again]: entries that no call has returned yet: stream, up to where the broker has it, entries, .. With `again` those
-- are returned, too, which were and are not shipped. Last comes the clock in milliseconds if nothing is left.
across('sonic_take', function(args)
	if args[1] then
		shards.taken, shards.fresh, taking = {}, {}, {}
		for out in pairs(shards.held) do shards.fresh[out] = true end
	end
	local list, bytes = {}, 0
	while next(taking) or next(shards.fresh) do
		if not next(taking) then taking, shards.fresh = shards.fresh, {} end
		for out in pairs(taking) do
			if bytes >= MOST_TAKEN then return list end
			local from = shards.taken[out]
			local entries = try('XRANGE', out, from and '(' .. from or '-', '+', 'COUNT', '64')
			if entries.err then -- the slot has moved
				shards.keep(out, 0)
			elseif #entries > 0 then
				local before = from or call('HGET', state(out, 'meta'), 'shipped') or NO_ID
				list[#list + 1], list[#list + 2], list[#list + 3] = out, before, entries
				shards.taken[out] = entries[#entries][1]
				for i = 1, #entries do bytes = bytes + #entries[i][2][2] + ENTRY_OVERHEAD end
				if #entries == 64 then shards.fresh[out] = true end
			end
			taking[out] = nil
		end
	end
	list[#list + 1] = format('%d', wall_clock())
	return list
end)

-- sonic_shipped_all stream id ..: sonic_shipped of many streams. It returns the streams whose slots this primary does not have, or not all.
across('sonic_shipped_all', function(args)
	local missing = {}
	for i = 1, #args, 2 do
		if not pcall(shards.shipped, args[i], args[i + 1]) then
			shards.keep(args[i], 0)
			missing[#missing + 1] = args[i]
		end
	end
	return missing
end)

end
