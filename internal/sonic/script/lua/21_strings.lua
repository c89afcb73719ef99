
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- set_counter runs SET of an integer to a counter, which is shipped as the difference. Both values are within 2^53, so
-- that Lua's numbers hold the difference.
local function set_counter(args)
	local key, value = args[2], args[3]
	local number, old = tonumber(value), try('GET', key)
	local old_number = not failed(old) and tonumber(old or '0')
	local refused = not number or integer_text(number) ~= value or not old_number or not integer_text(old_number)
	local options = {}
	for i = 4, #args do
		local option = string.upper(args[i])
		options[option] = true
		refused = refused or option ~= 'NX' and option ~= 'XX' and option ~= 'GET'
	end
	if refused then return counter_refusal('SET') end
	local reply = run('SET', args)
	if failed(reply) or options.NX and old or options.XX and not old or old and old_number == number then return reply end
	return reply, counter_effect('I', c.db, key, format('%d', number - old_number))
end

write('SET', function(c, args, key, policy)
	local value = args[3]
	if policy == 'c' and value then return set_counter(args) end
	if #args == 3 then
		local reply = try('SET', key, value)
		if reply.err then return reply end
		return reply, string_effect(policy, c.db, key, value, ''), wholesale_versions(policy, c.db, key, '')
	end
	local reply = run('SET', args)
	if failed(reply) then return reply end
	local timed, get, nx, xx = false, false, false, false
	local i = 4
	while i <= #args do
		local option = string.upper(args[i])
		if option == 'GET' then
			get = true
		elseif option == 'NX' then
			nx = true
		elseif option == 'XX' then
			xx = true
		else
			timed = true
			if option ~= 'KEEPTTL' then i = i + 1 end
		end
		i = i + 1
	end
	local done
	if not get then
		done = reply ~= false
	elseif nx then
		done = reply == false
	else
		done = not xx or reply ~= false
	end
	if not done then return reply end
	local pxat = ''
	if timed then pxat = expiry_of(key) end
	if not pxat then -- it expires in the past
		return reply, deletion_effect(policy, c.db, key), wholesale_versions(policy, c.db, key, '')
	end
	return reply, string_effect(policy, c.db, key, value, pxat), wholesale_versions(policy, c.db, key, pxat)
end, {counters = true})

-- SETEX key time value, PSETEX key time value
each({'SETEX', 'PSETEX'}, function(command)
	write(command, function(c, args, key, policy)
		local reply = run(command, args)
		if reply.err then return reply end
		local pxat = expiry_of(key)
		return reply, string_effect(policy, c.db, key, args[4], pxat), wholesale_versions(policy, c.db, key, pxat)
	end)
end)

each({'SETNX', 'GETSET'}, function(command)
	write(command, function(c, args, key, policy)
		local reply = run(command, args)
		if failed(reply) or reply == 0 then return reply end
		return reply, string_effect(policy, c.db, key, args[3], ''), wholesale_versions(policy, c.db, key, '')
	end)
end)

write('GETDEL', function(c, args, key, policy)
	local reply = run('GETDEL', args)
	if not reply or failed(reply) then return reply end
	return reply, deletion_effect(policy, c.db, key), wholesale_versions(policy, c.db, key, '')
end, {frees = true})

write('GETEX', function(c, args, key, policy)
	if #args == 2 then return try('GETEX', key) end
	local before = expiry_of(key)
	local cleared = cleared_before(policy, c.db, key)
	local reply = run('GETEX', args)
	if not reply or failed(reply) then return reply end
	local after = expiry_of(key)
	if not after then return reply, deletion_effect(policy, c.db, key), wholesale_versions(policy, c.db, key, '') end
	if after == before then return reply end
	return reply, expiry_change(policy, c.db, key, before, after, cleared)
end, {frees = true})

each({'MSET', 'MSETNX'}, function(command)
	write(command, function(c, args)
		if #args % 2 == 0 then return try(command, args[2], args[2], args[2]) end -- for its error
		if command == 'MSETNX' then
			for i = 2, #args, 2 do
				if call('EXISTS', args[i]) == 1 then return 0 end
			end
		end
		local reply = run_sliced('MSET', nil, args, 2, #args)
		if failed(reply) then return reply end
		local parts, versions = {}, nil
		for i = 2, #args, 2 do
			local key, policy = args[i], policy_of(args[i])
			parts[#parts + 1] = string_effect(policy, c.db, key, args[i + 1], '')
			versions = wholesale_versions(policy, c.db, key, '', versions)
		end
		return command == 'MSET' and reply or 1, concat(parts), versions
	end, {last = 0, step = 2})
end)

-- increments registers a command that adds to an integer; delta_of returns by how much, as text.
local function increments(command, delta_of)
	write(command, function(c, args, key, policy)
		local reply = run(command, args)
		if type(reply) ~= 'number' then return reply end
		local value = integer_text(reply)
		if not value then
			value = call('GET', key)
			reply = {ok = value}
		end
		if c.alone then return reply end
		if policy == 'c' then return reply, counter_effect('I', c.db, key, delta_of(args)) end
		local pxat = expiry_of(key)
		return reply, string_effect(policy, c.db, key, value, pxat), wholesale_versions(policy, c.db, key, pxat)
	end, {counters = true, special = true})
end

increments('INCR', function() return '1' end)
increments('DECR', function() return '-1' end)
increments('INCRBY', function(args) return args[3] end)
increments('DECRBY', function(args)
	local delta = args[3]
	if delta == '0' then return delta end -- INCRBY refuses -0
	if string.sub(delta, 1, 1) == '-' then return string.sub(delta, 2) end
	return '-' .. delta
end)

write('INCRBYFLOAT', function(c, args, key, policy)
	local reply = run('INCRBYFLOAT', args)
	if failed(reply) then return reply end
	local pxat = expiry_of(key)
	return reply, string_effect(policy, c.db, key, reply, pxat), wholesale_versions(policy, c.db, key, pxat)
end)

-- APPEND key value, SETRANGE key offset value. An empty value changes a string only when APPEND makes the key.
each({{'APPEND', 3}, {'SETRANGE', 4}}, function(command, at)
	write(command, function(c, args, key)
		local there = call('EXISTS', key) == 1
		local reply = run(command, args)
		if failed(reply) or args[at] == '' and (there or at == 4) then return reply end
		return reply, changed(there, c.db, key, command, args)
	end)
end)

end
