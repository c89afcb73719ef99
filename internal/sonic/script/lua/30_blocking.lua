
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Commands that block are one try in a function, with nil when there is nothing; the proxy waits. Redis
-- lets functions run BLMPOP and BZMPOP only: the others run the commands that do not block.

-- timeout_error returns Redis' error about a timeout. BLMPOP on no key does nothing but check it.
local function timeout_error(timeout) return try('BLMPOP', timeout, '1', state(c.outbox, 'none'), 'LEFT') end

-- first_pop runs pop for keys in turn until one has something: pop(key) returns a reply, then effects and versions.
local function first_pop(args, pop)
	local n = #args
	if n < 3 then return try('BLMPOP') end -- for the error of its number of arguments
	local problem = timeout_error(args[n])
	if problem then return problem end
	for i = 2, n - 1 do
		local reply, effects, versions = pop(args[i])
		if reply then return reply, effects, versions end
	end
	return false
end

-- BLPOP key .. timeout
each({{'BLPOP', 'LPOP'}, {'BRPOP', 'RPOP'}}, function(command, one)
	write(command, function(c, args)
		return first_pop(args, function(key)
			local reply = try(one, key)
			if not reply or failed(reply) then return reply end
			return {key, reply}, operation(c.db, key, one, {}, 1, 0)
		end)
	end, {last = -1, special = true, frees = true})
end)

-- BZPOPMIN key .. timeout
each({{'BZPOPMIN', 'ZPOPMIN'}, {'BZPOPMAX', 'ZPOPMAX'}}, function(command, one)
	write(command, function(c, args)
		return first_pop(args, function(key)
			local pxat = expiry_of(key)
			local reply = try(one, key)
			if failed(reply) then return reply end
			if #reply == 0 then return false end
			local score = c.resp3 and {double = tonumber(reply[2])} or reply[2]
			return {key, reply[1], score}, removal_effect('z', policy_of(key), c.db, key, pxat, reply, 1, 1)
		end)
	end, {last = -1, special = true, frees = true})
end)

-- BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout, BRPOPLPUSH source destination timeout. The error that the
-- destination is of the wrong type differs from that of the source: a command that already waits ignores a source of
-- the wrong type, as in Redis.
each({{'BLMOVE', 'LMOVE'}, {'BRPOPLPUSH', 'RPOPLPUSH'}}, function(name, command)
	write(name, function(c, args)
		local n = command == 'LMOVE' and 6 or 4
		if #args ~= n then return try(command) end
		local problem = n == 6 and try('LMOVE', state(c.outbox, 'none'), args[3], args[4], args[5]) -- checks the directions
		problem = problem or timeout_error(args[n])
		if problem then return problem end
		local reply, effects, versions = move_element(command, {unpack(args, 1, n - 1)}, c.db)
		if failed(reply) and string.find(reply.err, '^WRONGTYPE') and call('TYPE', args[2]).ok == 'list' then
			return {err = 'SONICDESTINATION ' .. reply.err}
		end
		return reply, effects, versions
	end, {last = 3, special = true})
end)

end
