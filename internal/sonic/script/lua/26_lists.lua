each({{'LPUSH', 'LPUSH'}, {'RPUSH', 'RPUSH'}, {'LPUSHX', 'LPUSH'}, {'RPUSHX', 'RPUSH'}}, function(command, plain)
	write(command, function(c, args, key)
		local n, reply = #args, nil
		for start = 3, math.max(n, 3), SLICE do
			reply = try(command, key, unpack(args, start, math.min(start + SLICE - 1, n)))
			if failed(reply) or reply == 0 then return reply end
		end
		if reply == n - 2 then return reply, dump_state(c.db, key) end -- there was no list
		return reply, operation(c.db, key, plain, args, 3, n)
	end)
end)

-- Commands that changed something unless the reply is nil, 0, -1 or an error. LREM and the pops free memory.
each({{'LPOP', true}, {'RPOP', true}, {'LREM', true}, {'LSET', false}, {'LINSERT', false}}, function(command, frees)
	write(command, function(c, args, key)
		local reply = run(command, args)
		if not reply or reply == 0 or reply == -1 or failed(reply) then return reply end
		if type(reply) == 'table' and not reply.ok and #reply == 0 then return reply end -- LPOP key 0
		return reply, operation(c.db, key, command, args, 3, #args)
	end, {frees = frees})
end)

write('LTRIM', function(c, args, key)
	local before = try('LLEN', key)
	local reply = run('LTRIM', args)
	if failed(reply) or before == call('LLEN', key) then return reply end
	return reply, operation(c.db, key, 'LTRIM', args, 3, 4)
end, {frees = true})

local function pop_from(side) return side == 'LEFT' and 'LPOP' or 'RPOP' end

-- move_element runs command, LMOVE or RPOPLPUSH. What one list loses and what the other one gets are two effects.
local function move_element(command, args, db)
	local from, to = args[2], args[3]
	local reply = run(command, args)
	if not reply or failed(reply) or c.alone then return reply end
	local taken, put = 'RIGHT', 'LEFT'
	if command == 'LMOVE' then taken, put = string.upper(args[4]), string.upper(args[5]) end
	if from == to then return reply, operation(db, from, 'LMOVE', {taken, put}, 1, 2) end
	local effects, versions = operation(db, from, pop_from(taken), {}, 1, 0)
	if call('LLEN', to) == 1 then return reply, dump_state(db, to, effects, versions) end -- there was no list
	return reply, operation(db, to, put == 'LEFT' and 'LPUSH' or 'RPUSH', {reply}, 1, 1, effects, versions)
end

each({'LMOVE', 'RPOPLPUSH'}, function(command)
	write(command, function(c, args) return move_element(command, args, c.db) end, {last = 3})
end)

-- LMPOP numkeys key .. LEFT|RIGHT [COUNT n]; BLMPOP has a timeout before that, and does not wait in a function.
each({{'LMPOP', 2}, {'BLMPOP', 3}}, function(command, at)
	write(command, function(c, args)
		local last = last_of_keys(args, at)
		for i = at + 1, last do
			if policy_of(args[i]) == 'c' then return counter_refusal(command) end
		end
		local reply = run(command, args)
		if not reply or failed(reply) then return reply end
		return reply, operation(c.db, reply[1], pop_from(string.upper(args[last + 1])), {DIGITS[#reply[2]]}, 1, 1)
	end, {counters = true, frees = true})
end)
