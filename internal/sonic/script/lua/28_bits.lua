
write('SETBIT', function(args, db)
	local key = args[2]
	local policy = policy_of(key)
	if policy == 'c' then return counter_refusal('SETBIT') end
	local before = try('STRLEN', key)
	local reply = run('SETBIT', args)
	if failed(reply) then return reply end
	if reply == tonumber(args[4]) and before == call('STRLEN', key) then return reply end
	return reply, string_state(policy, db, key)
end)

-- BITFIELD may lengthen the string without setting anything, when it overflows. Its integers may be
-- larger than a Lua number holds: those are read again, each from its place.
write('BITFIELD', function(args, db)
	local key = args[2]
	local policy = policy_of(key)
	if policy == 'c' then return counter_refusal('BITFIELD') end
	local before = try('GET', key)
	local reply = run('BITFIELD', args)
	if failed(reply) then return reply end
	local after = call('GET', key)
	if after == before then return reply end
	return reply, string_state(policy, db, key)
end, {special = true})

-- BITOP operation destination key ..
write('BITOP', function(args, db) return stored('BITOP', args, db, args[3]) end)

write('PFADD', function(args, db)
	local key, n = args[2], #args
	local policy = policy_of(key)
	if policy == 'c' then return counter_refusal('PFADD') end
	local reply = 0
	if n <= SLICE then
		reply = try('PFADD', unpack(args, 2))
	else
		for start = 3, n, SLICE do
			local part = try('PFADD', key, unpack(args, start, math.min(start + SLICE - 1, n)))
			if failed(part) then return part end
			if part == 1 then reply = 1 end
		end
	end
	if reply ~= 1 then return reply end
	return reply, string_state(policy, db, key)
end)

write('PFMERGE', function(args, db)
	local key = args[2]
	local policy = policy_of(key)
	if policy == 'c' then return counter_refusal('PFMERGE') end
	local reply = run('PFMERGE', args)
	if failed(reply) then return reply end
	return reply, string_state(policy, db, key)
end)
