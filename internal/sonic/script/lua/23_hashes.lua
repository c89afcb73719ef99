
each({'HSET', 'HMSET'}, function(command)
	write(command, function(c, args, key, policy)
		local n, reply = #args, nil
		if n % 2 == 1 then
			reply = try(command, unpack(args, 2, math.min(n, SLICE + 1))) -- an odd number fails, however many
		else
			reply = run_sliced(command, key, args, 3, n)
		end
		if failed(reply) then return reply end
		return reply, elements_effect('H', policy, c.db, key, expiry_of(key), args, 3, n),
			added_versions(policy, c.db, key, 'h', args, 3, n, 2)
	end)
end)

write('HSETNX', function(c, args, key, policy)
	local reply = run('HSETNX', args)
	if reply ~= 1 then return reply end
	return reply, elements_effect('H', policy, c.db, key, expiry_of(key), args, 3, 4),
		added_versions(policy, c.db, key, 'h', args, 3, 3, 1)
end)

write('HINCRBY', function(c, args, key, policy)
	local field = args[3]
	local reply = run('HINCRBY', args)
	if type(reply) ~= 'number' then return reply end
	local value = integer_text(reply)
	if not value then
		value = call('HGET', key, field)
		reply = {ok = value}
	end
	if c.alone then return reply end
	if policy == 'c' then return reply, counter_effect('i', c.db, key, field, args[4]) end
	return reply, element_effect('H', policy, c.db, key, expiry_of(key), field, value),
		added_versions(policy, c.db, key, 'h', args, 3, 3, 1)
end, {counters = true, special = true})

write('HINCRBYFLOAT', function(c, args, key, policy)
	local field = args[3]
	local reply = run('HINCRBYFLOAT', args)
	if failed(reply) then return reply end
	return reply, element_effect('H', policy, c.db, key, expiry_of(key), field, reply),
		added_versions(policy, c.db, key, 'h', args, 3, 3, 1)
end)

-- removes registers HDEL, SREM or ZREM; reading tells which elements there are.
local function removes(command, reading, op)
	write(command, function(c, args, key, policy)
		local n, pxat = #args, expiry_of(key)
		if not pxat or n < 3 then return run_sliced(command, key, args, 3, math.min(n, 3)) end
		if n == 3 then
			local reply = try(command, key, args[3])
			if reply ~= 1 then return reply end
			return reply, removal_effect(op, policy, c.db, key, pxat, args, 3, 3)
		end
		local answers = read_sliced(try, reading, key, args, 3, n)
		if failed(answers) then return answers end
		local list, seen = {}, {} -- an element that args names twice is removed once
		for i = 3, n do
			local element, answer = args[i], answers[i - 2]
			if answer and answer ~= 0 and not seen[element] then
				seen[element] = true
				list[#list + 1] = element
			end
		end
		local reply = run_sliced(command, key, args, 3, n)
		if failed(reply) or reply == 0 then return reply end
		return reply, removal_effect(op, policy, c.db, key, pxat, list, 1, #list)
	end, {frees = true})
end

removes('HDEL', 'HMGET', 'h')
