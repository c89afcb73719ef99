
local call, try -- redis.call, which raises errors, and redis.pcall, which returns them

-- Headers of msgpack by length: HEAD[n] of a string of n bytes, COUNT[n] of an array of n values.
-- Effects are built from them by hand: one concatenation in place of a table and a call per effect.
local HEAD, COUNT = {}, {}
local DIGITS = {} -- numbers as decimal text: Lua formats one at every concatenation
local VERSION_HASH = {} -- VERSION_HASH[out]: the key of the hash of versions of the shard of the stream out
local START = {} -- START[op][policy][db]: the packed op, policy and db, which begin every effect

bind = function()
	call, try = redis.call, redis.pcall
	string, math, table, tonumber, tostring, type, unpack, pcall = globals()
	concat, format = table.concat, string.format
	local char, floor = string.char, math.floor
	for n = 0, 255 do
		HEAD[n] = n < 32 and char(160 + n) or char(217, n)
		COUNT[n] = n < 16 and char(144 + n) or char(220, 0, n)
		DIGITS[n] = format('%d', n)
	end
	local function longer(of_16, of_32)
		return {__index = function(_, n)
			if n < 65536 then return char(of_16, floor(n / 256), n % 256) end
			return char(of_32, floor(n / 16777216), floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
		end}
	end
	setmetatable(HEAD, longer(218, 219))
	setmetatable(COUNT, longer(220, 221))
	setmetatable(DIGITS, {__index = function(_, n) return format('%d', n) end})
	local function lazily(make)
		return setmetatable({}, {__index = function(t, k)
			t[k] = make(k)
			return t[k]
		end})
	end
	VERSION_HASH = lazily(function(out) return state(out, 'ver') end)
	START = lazily(function(op)
		return lazily(function(policy)
			return lazily(function(db) return HEAD[#op] .. op .. HEAD[#policy] .. policy .. HEAD[#db] .. db end)
		end)
	end)
end

local function register(name, flags, callback)
	redis.register_function{
		function_name = name, flags = flags,
		callback = function(keys, args)
			if not concat then bind() end
			c.selected = '0'
			return callback(keys[1], args)
		end,
	}
end

-- register_shard registers a function of one shard. It needs a setting of the context, 'opened' or 'ready', if any.
local function register_shard(name, flags, needs, callback)
	register(name, flags, function(out, args)
		if needs and not c[needs] then return NOT_READY end
		local moving = shards.use(out)
		if moving then return moving end
		return callback(out, args)
	end)
end

-- reads registers a function that changes nothing. It works on a replica, too.
local function reads(name, needs, callback) register_shard(name, {'no-writes'}, needs, callback) end

-- always registers a function that runs when Redis has reached its bound of memory, too.
local function always(name, needs, callback) register_shard(name, {'allow-oom'}, needs, callback) end

-- sliced calls command key list[first..last], at most SLICE values at a time.
local function sliced(command, key, list, first, last)
	for i = first, last, SLICE do
		call(command, key, unpack(list, i, math.min(i + SLICE - 1, last)))
	end
end

-- read_sliced does so by f, call or try, and returns a list of all replies, or the first error.
local function read_sliced(f, command, key, list, first, last)
	if last - first < SLICE then return f(command, key, unpack(list, first, last)) end
	local found = {}
	for i = first, last, SLICE do
		local part = f(command, key, unpack(list, i, math.min(i + SLICE - 1, last)))
		if failed(part) then return part end
		for j = 1, #part do found[#found + 1] = part[j] end
	end
	return found
end

-- by_name returns a list of name, value, .. as a table.
local function by_name(list)
	local found = {}
	for i = 1, #list, 2 do found[list[i]] = list[i + 1] end
	return found
end

-- expiry_of returns when key expires, in milliseconds as text: '' for never, nil when there is no such key. A Lua
-- number cannot hold times beyond 2^53 exactly: the largest becomes the largest that Redis takes.
local function expiry_of(key)
	local at = call('PEXPIRETIME', key)
	if at == -1 then return '' end
	if at == -2 then return nil end
	if at < 9007199254740992 then return format('%d', at) end
	return at >= 9223372036854775807 and '9223372036854775807' or format('%.0f', at)
end

local function string_effect(policy, db, key, value, pxat)
	return COUNT[6] .. START.S[policy][db] .. HEAD[#key] .. key .. HEAD[#value] .. value .. HEAD[#pxat] .. pxat
end

local function dump_effect(policy, db, key, dump, pxat)
	return COUNT[6] .. START.R[policy][db] .. HEAD[#key] .. key .. HEAD[#dump] .. dump .. HEAD[#pxat] .. pxat
end

-- operation_effect packs L: command, and its arguments behind the key, list[first..last], which made length values of
-- what base made.
local function operation_effect(policy, db, key, base, pxat, length, command, list, first, last)
	local parts = {
		COUNT[last - first + 9], START.L[policy][db], HEAD[#key], key, HEAD[#base], base, HEAD[#pxat], pxat,
		HEAD[#length], length, HEAD[#command], command,
	}
	local n = #parts
	for i = first, last do
		local value = list[i]
		parts[n + 1], parts[n + 2] = HEAD[#value], value
		n = n + 2
	end
	return concat(parts)
end

local function deletion_effect(policy, db, key)
	return COUNT[4] .. START.D[policy][db] .. HEAD[#key] .. key
end

-- expiry_effect packs E. cleared is the time before which an expiry that has passed wiped the key.
local function expiry_effect(policy, db, key, pxat, cleared)
	local head = START.E[policy][db] .. HEAD[#key] .. key .. HEAD[#pxat] .. pxat
	if cleared then return COUNT[6] .. head .. HEAD[#cleared] .. cleared end
	return COUNT[5] .. head
end

-- element_effect packs one element, of one or two values.
local function element_effect(op, policy, db, key, pxat, a, b)
	local head = START[op][policy][db] .. HEAD[#key] .. key .. HEAD[#pxat] .. pxat .. HEAD[#a] .. a
	if b then return COUNT[7] .. head .. HEAD[#b] .. b end
	return COUNT[6] .. head
end

-- counter_effect packs I, i or j, of one or two values: counters have no expiry. A sum of changes that were dropped
-- has one value more, s.
local function counter_effect(op, db, key, a, b, sum)
	local head = START[op].c[db] .. HEAD[#key] .. key .. HEAD[#a] .. a
	if sum then return COUNT[7] .. head .. HEAD[#b] .. b .. HEAD[#sum] .. sum end
	if b then return COUNT[6] .. head .. HEAD[#b] .. b end
	return COUNT[5] .. head
end

-- elements_effect packs list[first..last] behind key and pxat, as several effects when they are more
-- than SLICE, so that who applies one can unpack it.
local function elements_effect(op, policy, db, key, pxat, list, first, last)
	if last - first < 2 then
		if last < first then return '' end
		return element_effect(op, policy, db, key, pxat, list[first], last > first and list[last] or nil)
	end
	local head = START[op][policy][db] .. HEAD[#key] .. key .. HEAD[#pxat] .. pxat
	local parts, n = {}, 0
	for start = first, last, SLICE do
		local stop = math.min(start + SLICE - 1, last)
		parts[n + 1], parts[n + 2] = COUNT[5 + stop - start + 1], head
		n = n + 2
		for i = start, stop do
			local value = list[i]
			parts[n + 1], parts[n + 2] = HEAD[#value], value
			n = n + 2
		end
	end
	return concat(parts)
end

-- first_op returns what the first of packed effects is, nil when there is none.
local function first_op(packed)
	if packed == '' then return nil end
	local head = string.byte(packed)
	local at = head == 220 and 5 or head == 221 and 7 or 3 -- behind the array's header, and that of a string of one byte
	return string.sub(packed, at, at)
end
