
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

write('SETBIT', function(c, args, key)
	local before = try('STRLEN', key)
	local reply = run('SETBIT', args)
	if failed(reply) then return reply end
	if reply == tonumber(args[4]) and before == call('STRLEN', key) then return reply end
	return reply, changed(before ~= 0, c.db, key, 'SETBIT', args)
end)

-- long_text returns high * 2^32 + low as decimal text.
local function long_text(high, low)
	local limbs = {math.floor(high / 65536), high % 65536, math.floor(low / 65536), low % 65536}
	local text = ''
	repeat
		local rest, any = 0, false
		for i = 1, 4 do
			local value = rest * 65536 + limbs[i]
			limbs[i], rest = math.floor(value / 10000), value % 10000
			any = any or limbs[i] > 0
		end
		text = format(any and '%04d' or '%d', rest) .. text
	until not any
	return text
end

-- field_text returns the integer that key holds at offset as text, read in two halves; type is i or u and its width.
local function field_text(key, kind, offset)
	local signed, width = string.sub(kind, 1, 1) == 'i', tonumber(string.sub(kind, 2))
	if width <= 32 then return format('%d', call('BITFIELD', key, 'GET', kind, offset)[1]) end
	local at = tonumber(offset) or tonumber(string.sub(offset, 2)) * width -- #n is in widths
	local halves = call('BITFIELD', key, 'GET', 'u' .. width - 32, format('%d', at),
		'GET', 'u32', format('%d', at + width - 32))
	local high, low = halves[1], halves[2]
	if not signed or high < 2 ^ (width - 33) then return long_text(high, low) end
	high = 2 ^ (width - 32) - high
	if low > 0 then high, low = high - 1, 4294967296 - low end
	return '-' .. long_text(high, low)
end

-- exact_fields returns the reply of BITFIELD with the integers that a Lua number does not hold as
-- statuses. before is what the key held: the operations are done again, one by one, on a copy.
local function exact_fields(args, before, reply)
	local copy, overflow, n = state(c.outbox, 'none'), 'WRAP', 0
	if before then call('SET', copy, before) end
	local i = 3
	while i <= #args do
		local operation = string.lower(args[i])
		if operation == 'overflow' then
			overflow = args[i + 1]
			i = i + 2
		else
			local kind, offset = args[i + 1], args[i + 2]
			local text
			n = n + 1
			if operation ~= 'incrby' then text = field_text(copy, kind, offset) end
			if operation ~= 'get' then
				call('BITFIELD', copy, 'OVERFLOW', overflow, operation, kind, offset, args[i + 3])
			end
			if operation == 'incrby' then text = field_text(copy, kind, offset) end
			if reply[n] and not integer_text(reply[n]) then reply[n] = {ok = text} end
			i = i + (operation == 'get' and 3 or 4)
		end
	end
	call('DEL', copy)
	return reply
end

-- BITFIELD may lengthen the string without setting anything, when it overflows.
write('BITFIELD', function(c, args, key)
	local before = try('GET', key)
	local reply = run('BITFIELD', args)
	if failed(reply) then return reply end
	for i = 1, #reply do
		if reply[i] and not integer_text(reply[i]) then
			reply = exact_fields(args, before, reply)
			break
		end
	end
	local after = call('GET', key)
	if after == before then return reply end
	return reply, changed(before, c.db, key, 'BITFIELD', args)
end, {special = true})

-- BITOP operation destination key ..
write('BITOP', function(_, args) return stored('BITOP', args, args[3]) end, {counters = true})

write('PFADD', function(c, args, key)
	local n = #args
	local reply, there = 0, call('EXISTS', key) == 1
	for start = 3, math.max(n, 3), SLICE do
		local part = try('PFADD', key, unpack(args, start, math.min(start + SLICE - 1, n)))
		if failed(part) then -- a corrupted HyperLogLog: it may have been changed
			if string.find(part.err, 'INVALIDOBJ', 1, true) then return part, dump_state(c.db, key) end
			return part
		end
		if part == 1 then reply = 1 end
	end
	if reply ~= 1 then return reply end
	return reply, changed(there, c.db, key, 'PFADD', args)
end)

write('PFMERGE', function(c, args, key)
	local reply = run('PFMERGE', args)
	if failed(reply) then return reply end
	return reply, dump_state(c.db, key)
end)

end
